#include "gpu/event_clock.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "gpu/check.h"

namespace spillway::cuda {

namespace {

constexpr int kMeasurements = 8;
// A base that has not finished by then is waited for asleep: its time will be less exact.
constexpr std::int64_t kLongestPoll_ns = 1'000'000;

void wait_for(cudaEvent_t event, std::int64_t since_ns) {
  while (monotonic_ns() - since_ns < kLongestPoll_ns) {
    const cudaError_t error = cudaEventQuery(event);
    if (error == cudaSuccess) return;
    if (error != cudaErrorNotReady) check(error, "measure the device's clock");
  }
  check(cudaEventSynchronize(event), "measure the device's clock");
}

double milliseconds(cudaEvent_t from, cudaEvent_t to) {
  float elapsed = 0.0f;
  check(cudaEventElapsedTime(&elapsed, from, to), "read the time of an event");
  return elapsed;
}

}  // namespace

std::int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

EventHandle make_timed_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "create an event");
  return EventHandle(event);
}

EventClock::EventClock(double old_base_ms) : old_base_ms_(old_base_ms) {
  cudaStream_t stream = nullptr;
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "ask for the priorities of streams");
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "create the stream of the clock");
  stream_ = StreamHandle(stream);
  measure_base();  // the first one is slow, and is not the one that counts
  last_ = measure_base();
}

// The quickest of a few, whose host time is known best.
EventClock::Base EventClock::measure_base() {
  Base best;
  std::int64_t best_took = 0;
  for (int i = 0; i < kMeasurements; ++i) {
    Base base{make_timed_event()};
    const std::int64_t start = monotonic_ns();
    check(cudaEventRecord(base.event.get(), stream_.get()), "measure the device's clock");
    wait_for(base.event.get(), start);
    const std::int64_t took = monotonic_ns() - start;
    base.ns = start + took / 2;
    if (i == 0 || took < best_took) {
      best = std::move(base);
      best_took = took;
    }
  }
  return best;
}

std::int64_t EventClock::time_ns(cudaEvent_t event, std::int64_t recorded_ns) {
  const std::lock_guard lock(mutex_);
  const Base& base = recorded_ns >= last_.ns || before_.event.get() == nullptr ? last_ : before_;
  const double elapsed_ms = milliseconds(base.event.get(), event);
  const std::int64_t time = base.ns + std::llround(elapsed_ms * 1e6);
  if (&base == &last_ && elapsed_ms > old_base_ms_) {
    Base next = measure_base();
    before_ = std::exchange(last_, std::move(next));
  }
  return time;
}

}  // namespace spillway::cuda
