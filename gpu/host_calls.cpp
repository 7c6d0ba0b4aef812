#include "gpu/host_calls.h"

#include <chrono>
#include <new>
#include <thread>

namespace spillway::cuda {

HostCalls::HostCalls(Failure& failure) : failure_(failure), slots_(std::make_unique<Slot[]>(kCapacity)) {}

void HostCalls::enqueue(cudaStream_t stream, const HostCall& function) {
  if (enqueued_ - known_done_ == kCapacity) wait_for_room(stream);
  Slot& slot = slots_[enqueued_ % kCapacity];
  new (slot.function) HostCall(function);
  slot.owner = this;
  failure_.check(cudaLaunchHostFunc(stream, run, &slot), "enqueue a call of the host on", "a stream");
  ++enqueued_;
}

void HostCalls::run(void* data) {
  const Slot& slot = *static_cast<Slot*>(data);
  HostCalls& self = *slot.owner;
  if (!self.failure_.happened()) {
    try {
      (*std::launder(reinterpret_cast<const HostCall*>(slot.function)))();
    } catch (...) {
      self.failure_.keep(std::current_exception());
    }
  }
  self.done_.fetch_add(1, std::memory_order_release);
}

// On a device that has failed CUDA calls nothing any more, so the wait has to look at the stream as well.
void HostCalls::wait_for_room(cudaStream_t stream) {
  while ((known_done_ = done_.load(std::memory_order_acquire)) + kCapacity == enqueued_) {
    const cudaError_t error = cudaStreamQuery(stream);
    if (error != cudaErrorNotReady) failure_.check(error, "wait for calls of the host on", "a stream");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace spillway::cuda
