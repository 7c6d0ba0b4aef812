// cudaMalloc, cudaHostRegister and their like.
#include <cstdlib>
#include <cstring>

#include "cuda_sim/device_memory.h"
#include "cuda_sim/pinned_memory.h"
#include "cuda_sim/runtime_state.h"

using namespace cuda_sim;

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
  return api_call("cudaMalloc", [&] {
    if (p == nullptr) return cudaErrorInvalidValue;
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    State& s = state();
    const StateLock lock(s.lock);
    ++s.statistics.allocations;
    const std::int64_t wanted = device_bytes_used(current_device()) + static_cast<std::int64_t>(bytes);
    const std::int64_t injected = s.settings.fail_allocation_after;
    if (wanted > s.settings.memory_bytes || (injected >= 0 && wanted > injected)) return cudaErrorMemoryAllocation;
    *p = allocate_device(current_device(), bytes);
    return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

// Waits for the device, as the real one does; so it must not be part of a step, and it hides the races of what it frees.
cudaError_t cudaFree(void* p) {
  return api_call("cudaFree", [&] {
    if (p == nullptr) return cudaSuccess;
    State& s = state();
    int device;
    {
      const StateLock lock(s.lock);
      ++s.statistics.frees;
      const DeviceAllocation* const found = find_device(p);
      if (found == nullptr && in_device_space(p)) violation("cudaFree of device memory at %p that is freed already or never was", p);
      if (found == nullptr || found->begin != p) return cudaErrorInvalidValue;
      device = found->device;
    }
    wait_for_device(device);
    const StateLock lock(s.lock);
    free_device(static_cast<std::byte*>(p));
    return s.failed[device];
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return api_call("cudaMemGetInfo", [&] {
    const StateLock lock(state().lock);
    *total = static_cast<size_t>(state().settings.memory_bytes);
    *free = *total - static_cast<size_t>(device_bytes_used(current_device()));
    return cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  return api_call("cudaHostRegister", [&] {
    if (p == nullptr || bytes == 0) return cudaErrorInvalidValue;
    State& s = state();
    const StateLock lock(s.lock);
    ++s.statistics.allocations;
    const std::int64_t largest = s.settings.largest_pinning;
    if (s.settings.refuse_pinning || (largest >= 0 && static_cast<std::int64_t>(bytes) > largest)) return cudaErrorMemoryAllocation;
    return pin(p, bytes) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
  });
}

cudaError_t cudaHostUnregister(void* p) {
  return api_call("cudaHostUnregister", [&] {
    const StateLock lock(state().lock);
    if (pinned_at(p) == 0) return cudaErrorHostMemoryNotRegistered;
    unpin(p, "cudaHostUnregister");
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  return api_call("cudaHostAlloc", [&] {
    if (p == nullptr || bytes == 0) return cudaErrorInvalidValue;
    State& s = state();
    const StateLock lock(s.lock);
    ++s.statistics.allocations;
    constexpr size_t kPage = 4096;
    *p = s.settings.refuse_pinning ? nullptr : std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    if (*p == nullptr) return cudaErrorMemoryAllocation;
    std::memset(*p, 0xff, bytes);
    pin(*p, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* p) {
  return api_call("cudaFreeHost", [&] {
    if (p == nullptr) return cudaSuccess;
    {
      const StateLock lock(state().lock);
      if (pinned_at(p) == 0) return cudaErrorInvalidValue;
      unpin(p, "cudaFreeHost");
    }
    std::free(p);
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  return api_call("cudaPointerGetAttributes", [&] {
    const StateLock lock(state().lock);
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;  // what the real one says of such memory
    if (const DeviceAllocation* const found = find_device(p)) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = found->device;
      attributes->devicePointer = const_cast<void*>(p);
    } else if (is_pinned(p, 1)) {
      attributes->type = cudaMemoryTypeHost;
      attributes->device = current_device();
      attributes->devicePointer = attributes->hostPointer = const_cast<void*>(p);
    }
    return cudaSuccess;
  });
}
}
