#include "gpu/event.h"

namespace spillway::cuda {

CudaEvent::CudaEvent(Context& context) : context_(context) {
  context_.enter();
  event_ = make_timed_event();
}

CudaEvent::~CudaEvent() { context_.enter_to_release(); }

void CudaEvent::synchronize() {
  context_.enter();
  if (!was_recorded()) return;
  context_.failure.check(cudaEventSynchronize(event_.get()), "wait for an event of", context_.name);
  context_.failure.throw_if_any();  // of a function that a stream has called
}

bool CudaEvent::finished() const {
  if (!was_recorded() || context_.failure.happened()) return true;
  context_.enter();
  return cudaEventQuery(event_.get()) != cudaErrorNotReady;
}

std::int64_t CudaEvent::time_ns() const {
  context_.enter();
  return context_.clock.time_ns(event_.get(), recorded_ns_.load(std::memory_order_relaxed));
}

void CudaEvent::record(cudaStream_t stream) {
  const std::int64_t now = monotonic_ns();
  context_.failure.check(cudaEventRecord(event_.get(), stream), "record an event of", context_.name);
  recorded_ns_.store(now, std::memory_order_relaxed);
}

}  // namespace spillway::cuda
