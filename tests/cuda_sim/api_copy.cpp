// cudaMemcpyAsync and cudaMemsetAsync. The blocking forms are left out: they use the default stream.
#include <cstring>

#include "cuda_sim/device_memory.h"
#include "cuda_sim/pinned_memory.h"
#include "cuda_sim/runtime_state.h"

using namespace cuda_sim;

namespace {

struct Side {
  bool device = false;
  bool pageable = false;
  bool within = true;  // the range does not leave its allocation
};

// The lock is held.
Side side_of(const void* p, std::size_t bytes, const char* what) {
  if (!in_device_space(p)) return {.pageable = !is_pinned(p, bytes)};
  const DeviceAllocation* const found = find_device(p);
  if (found == nullptr) violation("%s device memory at %p that is freed or never was", what, p);
  return {.device = true, .within = static_cast<const std::byte*>(p) + bytes <= found->begin + found->bytes};
}

bool agrees(cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
    case cudaMemcpyHostToHost: return !from_device && !to_device;
    case cudaMemcpyHostToDevice: return !from_device && to_device;
    case cudaMemcpyDeviceToHost: return from_device && !to_device;
    case cudaMemcpyDeviceToDevice: return from_device && to_device;
    case cudaMemcpyDefault: return true;
  }
  return false;
}

HostRange pinned_range(const Side& side, const void* p, std::size_t bytes) {
  if (side.device || side.pageable) return {};
  return {static_cast<const std::byte*>(p), bytes};
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return api_call("cudaMemcpyAsync", [&] {
    CUstream_st& target = checked_stream(stream, "cudaMemcpyAsync");
    Side to, from;
    {
      const StateLock lock(state().lock);
      if (bytes == 0) return cudaSuccess;
      to = side_of(dst, bytes, "copy to");
      from = side_of(src, bytes, "copy from");
      if (!to.within || !from.within || !agrees(kind, from.device, to.device)) return cudaErrorInvalidValue;
      ++state().statistics.copies;
      state().statistics.pageable_copies += to.pageable || from.pageable;
    }
    // At most one side is pinned host memory, but for copies within the host.
    const HostRange pinned = to.device ? pinned_range(from, src, bytes) : pinned_range(to, dst, bytes);
    push(target, {.what = "cudaMemcpyAsync", .run = [=] { std::memcpy(dst, src, bytes); }, .pinned = pinned});
    // The driver stages pageable memory, and the host waits for that.
    if (to.pageable || from.pageable) wait_for(*push_record(target));
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
  return api_call("cudaMemsetAsync", [&] {
    CUstream_st& target = checked_stream(stream, "cudaMemsetAsync");
    {
      const StateLock lock(state().lock);
      if (bytes == 0) return cudaSuccess;
      const Side side = side_of(p, bytes, "set");
      if (!side.within || side.pageable) return cudaErrorInvalidValue;
      ++state().statistics.copies;
    }
    push(target, {.what = "cudaMemsetAsync", .run = [=] { std::memset(p, value, bytes); }});
    return cudaSuccess;
  });
}
}
