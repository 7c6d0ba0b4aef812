// A build without a CUDA device: says so.
#include "spillway/communicator.h"
#include "spillway/device.h"
#include "spillway/error.h"

namespace spillway {

std::string why_no_cuda_device() { return "this build has no CUDA device"; }

std::unique_ptr<Device> make_cuda_device(int) {
  throw DeviceError("[cuda] open the device: " + why_no_cuda_device() + "; use --device host");
}

int cuda_device_count() { return 0; }

std::vector<CudaDeviceInfo> cuda_devices() { return {}; }

std::unique_ptr<World> make_device_world(World&, Device&, const WorldOptions&) { return nullptr; }

}  // namespace spillway
