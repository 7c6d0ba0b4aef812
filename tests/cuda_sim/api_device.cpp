// Devices and what they say of themselves.
#include <cstdio>
#include <cstring>

#include "cuda_sim/block_runner.h"
#include "cuda_sim/device_limits.h"
#include "cuda_sim/runtime_state.h"

using namespace cuda_sim;

namespace {

constinit thread_local int device_of_thread = 0;

constexpr int kProcessors = 4;

bool exists(int device) {
  const StateLock lock(state().lock);
  return device >= 0 && device < state().settings.devices;
}

}  // namespace

int cuda_sim::current_device() { return device_of_thread; }

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return api_call("cudaGetDeviceCount", [&] {
    const StateLock lock(state().lock);
    *count = state().settings.devices;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return api_call("cudaSetDevice", [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    device_of_thread = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return api_call("cudaGetDevice", [&] {
    *device = device_of_thread;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return api_call("cudaDeviceSynchronize", [&] {
    count(&Statistics::device_synchronisations);
    wait_for_device(device_of_thread);
    const StateLock lock(state().lock);
    return state().failed[device_of_thread];
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return api_call("cudaGetDeviceProperties", [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "Simulated GPU %d", device);
    properties->totalGlobalMem = static_cast<size_t>(settings().memory_bytes);
    properties->sharedMemPerBlock = kDefaultSharedBytes;
    properties->sharedMemPerBlockOptin = kMaxSharedBytes;
    properties->sharedMemPerMultiprocessor = kMaxSharedBytes + 1024;
    properties->reservedSharedMemPerBlock = 1024;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = kMaxBlockThreads;
    for (int axis = 0; axis < 3; ++axis) {
      properties->maxThreadsDim[axis] = static_cast<int>(kMaxBlock[axis]);
      properties->maxGridSize[axis] = static_cast<int>(kMaxGrid[axis]);
    }
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->multiProcessorCount = kProcessors;
    properties->major = kComputeMajor;
    properties->minor = kComputeMinor;
    properties->unifiedAddressing = properties->concurrentKernels = properties->hostRegisterSupported = 1;
    properties->canMapHostMemory = properties->streamPrioritiesSupported = 1;
    properties->asyncEngineCount = 2;
    properties->pciBusID = device + 1;
    properties->l2CacheSize = 1 << 20;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return api_call("cudaDeviceGetAttribute", [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock: *value = kMaxBlockThreads; return cudaSuccess;
      case cudaDevAttrWarpSize: *value = 32; return cudaSuccess;
      case cudaDevAttrMultiProcessorCount: *value = kProcessors; return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(kDefaultSharedBytes); return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(kMaxSharedBytes); return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor: *value = kComputeMajor; return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor: *value = kComputeMinor; return cudaSuccess;
      case cudaDevAttrAsyncEngineCount: *value = 2; return cudaSuccess;
      case cudaDevAttrUnifiedAddressing:
      case cudaDevAttrHostRegisterSupported: *value = 1; return cudaSuccess;
      default: violation("cudaDeviceGetAttribute of attribute %d, which the simulation does not know", static_cast<int>(attribute));
    }
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return api_call("cudaDeviceGetPCIBusId", [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    char full[16];
    std::snprintf(full, sizeof(full), "0000:%02X:00.0", static_cast<unsigned>(device + 1) & 0xffu);
    if (length <= static_cast<int>(std::strlen(full))) return cudaErrorInvalidValue;
    std::strcpy(text, full);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return api_call("cudaDeviceCanAccessPeer", [&] {
    if (!exists(device) || !exists(peer)) return cudaErrorInvalidDevice;
    *can = device != peer;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api_call("cudaDeviceGetStreamPriorityRange", [&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
  });
}

// These two answer without a driver.
cudaError_t cudaDriverGetVersion(int* version) {
  const Settings now = settings();
  *version = now.driver == Driver::absent || now.driver == Driver::stub ? 0 : now.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
}
