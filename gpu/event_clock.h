// Times of CUDA events on the host's monotonic clock.
//
// CUDA tells only the milliseconds between two events, as a float: 0.5 us apart after 8 s, 8 us after a minute or two. So
// times are counted from a base, an event whose host time was measured when it finished, and a new base is made once the
// last one is some seconds old; by that the two clocks cannot drift apart either. A base is off by at most half of what
// its measurement took, usually 10 us; so is every time counted from it, and times counted from different bases differ
// by the drift of the clocks in between.
#pragma once

#include <cstdint>
#include <mutex>

#include <cuda_runtime_api.h>

#include "gpu/handle.h"

namespace spillway::cuda {

using EventHandle = Handle<cudaEvent_t, cudaEventDestroy>;
using StreamHandle = Handle<cudaStream_t, cudaStreamDestroy>;

// Nanoseconds of the monotonic clock, Device::now_ns().
std::int64_t monotonic_ns();

EventHandle make_timed_event();

class EventClock {
 public:
  // A base older than this makes place for a new one.
  static constexpr double kOldBase_ms = 8'000.0;

  // Of the calling thread's device.
  explicit EventClock(double old_base_ms = kOldBase_ms);

  // When `event` finished, which it has; it was recorded at `recorded_ns` by the host's clock. Thread-safe. Blocks for
  // the moment that a new base takes. Throws DeviceError.
  std::int64_t time_ns(cudaEvent_t event, std::int64_t recorded_ns);

 private:
  struct Base {
    EventHandle event;
    std::int64_t ns = 0;
  };

  Base measure_base();

  const double old_base_ms_;
  std::mutex mutex_;
  StreamHandle stream_;  // its own, so that a base does not wait for work
  Base before_, last_;   // events recorded before the last base are counted from the one before it
};

}  // namespace spillway::cuda
