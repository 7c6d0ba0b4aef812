// Inside the simulation's library: how cuBLASLt, NCCL and the like put work on simulated streams. Everything here is
// uninstrumented code; see sanitizers.h for what that asks of it.
#pragma once

#include <cstddef>
#include <functional>

#include "cuda_sim/cuda_api.h"
#include "cuda_sim/sanitizers.h"
#include "cuda_sim/violation.h"

namespace cuda_sim {

// First thing in every entry point of a library: what a call by `name` would answer before looking at its arguments.
// cudaSuccess, or the error of a missing driver or of a device that has failed. A call inside a host function or a
// kernel is a violation.
cudaError_t enter_call(const char* name);

// Runs work() on the stream's thread after everything enqueued before, as a kernel would run: delayed, lazy, with
// device memory accessible, and skipped if the device has failed. ThreadSanitizer sees an edge from this call to the
// work and nothing else: what `work` does to memory through memcpy, memmove or memset is seen, its own loads and stores
// are not; announce those with reads_memory() and writes_memory() of sanitizers.h. `what` (a literal) names the work in reports.
// `work` must not throw and must not call CUDA. An unknown or destroyed stream, or the NULL stream, is a violation.
cudaError_t enqueue(cudaStream_t stream, const char* what, std::function<void()> work);

// The device that the stream was created on, and the calling thread's current one.
int device_of(cudaStream_t stream);
int current_device();

// Whether [p, p + bytes) lies within one live allocation of any simulated device. Freed memory is a violation.
bool is_device_range(const void* p, std::size_t bytes);

// Lets all streams run to their ends: what work does before it waits for a peer, and entry points that poll. Only the
// lazy mode needs it.
void release_all();

// Fails the device of the stream from within work, as a kernel's fault does: sticky.
void fail_device(cudaStream_t stream, cudaError_t error);

// Device memory stays accessible while one exists, in mode protect; enqueued work has it anyway.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace cuda_sim
