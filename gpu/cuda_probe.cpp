// A build with the CUDA toolkit but without the CUDA device: finds out what the machine has. The runtime library
// is opened when somebody asks and not linked, so that a run on the host device does not carry it.
#include <dlfcn.h>

#include <string>

#include <cuda_runtime_api.h>

#include "spillway/communicator.h"
#include "spillway/device.h"
#include "spillway/error.h"

namespace spillway {

namespace {

std::string count_devices(void* library) {
  const auto count = reinterpret_cast<decltype(&cudaGetDeviceCount)>(dlsym(library, "cudaGetDeviceCount"));
  const auto text = reinterpret_cast<decltype(&cudaGetErrorString)>(dlsym(library, "cudaGetErrorString"));
  if (count == nullptr || text == nullptr) return "the CUDA runtime found is not one: it has no cudaGetDeviceCount";
  int devices = 0;
  const cudaError_t error = count(&devices);
  // Driver too old or absent (35), the stub instead of a driver (34), no device (100).
  if (error != cudaSuccess) return "no CUDA device: " + std::string(text(error));
  return std::to_string(devices) + " CUDA device(s) found, but this version trains on the host device only";
}

}  // namespace

std::string why_no_cuda_device() {
  void* const library = dlopen(SPILLWAY_CUDART, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "no CUDA runtime: " + std::string(dlerror());
  const std::string reason = count_devices(library);
  dlclose(library);
  return reason;
}

std::unique_ptr<Device> make_cuda_device(int index) {
  throw DeviceError("[cuda] open device " + std::to_string(index) + ": " + why_no_cuda_device() + "; use --device host");
}

int cuda_device_count() { return 0; }

std::vector<CudaDeviceInfo> cuda_devices() { return {}; }

std::unique_ptr<World> make_device_world(World&, Device&, const WorldOptions&) { return nullptr; }

}  // namespace spillway
