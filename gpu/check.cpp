#include "gpu/check.h"

#include "spillway/error.h"

namespace spillway::cuda {

namespace {

// What to do; empty where the error says it all.
std::string_view advice(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return "the NVIDIA driver is absent or older than this build's CUDA needs: install or update it, or use --device host";
    case cudaErrorStubLibrary:
      return "the libcuda.so.1 that was found is the toolkit's stub: take its folder (.../stubs) out of LD_LIBRARY_PATH";
    case cudaErrorNoDevice:
      return "look at nvidia-smi and CUDA_VISIBLE_DEVICES; a container needs --gpus";
    case cudaErrorDevicesUnavailable:
      return "another process has it for itself (compute mode, see nvidia-smi -q), or it hangs";
    case cudaErrorSystemNotReady:
      return "the machine's fabric manager is not running: start nvidia-fabricmanager";
    case cudaErrorSystemDriverMismatch:
      return "driver and kernel module are of different versions: load the module again, or reboot";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return "this build has no kernels for this device: configure with its architecture in -Dgpu_archs";
    case cudaErrorMemoryAllocation:
      return "lower spillway.device_memory, or end what else runs on the device (nvidia-smi)";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
      return "a kernel went wrong, perhaps an earlier one: compute-sanitizer names it and its line";
    case cudaErrorECCUncorrectable:
      return "the device's memory is damaged: see nvidia-smi -q -d ECC and the kernel log";
    default: return {};
  }
}

}  // namespace

std::string error_text(cudaError_t error) {
  std::string text = std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
  if (const std::string_view what_to_do = advice(error); !what_to_do.empty()) (text += "; ") += what_to_do;
  return text;
}

bool means_no_device(cudaError_t error) {
  return error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary || error == cudaErrorNoDevice;
}

void check(cudaError_t error, std::string_view attempted) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // or the next launch would report it a second time
  throw DeviceError("[cuda] " + std::string(attempted) + ": " + error_text(error));
}

}  // namespace spillway::cuda
