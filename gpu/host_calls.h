// The functions of the host that a stream will call, in order: a ring, so that enqueuing one allocates nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <cuda_runtime_api.h>

#include "gpu/failure.h"
#include "spillway/device.h"

namespace spillway::cuda {

class HostCalls {
 public:
  static constexpr std::uint64_t kCapacity = 256;

  explicit HostCalls(Failure& failure);

  // Enqueues the call on `stream`, which is always the same one. Once something of the device has failed, functions are
  // not called any more; what one throws becomes the device's failure. Blocks only while kCapacity calls are queued.
  // One thread at a time. Throws DeviceError.
  void enqueue(cudaStream_t stream, const HostCall& function);

 private:
  struct Slot {
    alignas(HostCall) std::byte function[sizeof(HostCall)];
    HostCalls* owner;
  };

  static void CUDART_CB run(void* slot);
  void wait_for_room(cudaStream_t stream);

  Failure& failure_;
  std::unique_ptr<Slot[]> slots_;
  std::uint64_t enqueued_ = 0;    // by the thread that enqueues
  std::uint64_t known_done_ = 0;  // looked up only when the ring seems full, so that enqueuing orders nothing
  std::atomic<std::uint64_t> done_{0};
};

}  // namespace spillway::cuda
