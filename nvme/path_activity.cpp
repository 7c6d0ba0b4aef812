#include "path_activity.h"

#include <chrono>

namespace spillway {

void BusyClock::begin(std::int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (working_++ == 0) since_ns_ = now_ns;
}

void BusyClock::end(std::int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (--working_ == 0) sum_ns_ += now_ns - since_ns_;
}

std::int64_t BusyClock::busy_ns(std::int64_t now_ns) const {
  const std::lock_guard lock(mutex_);
  return sum_ns_ + (working_ > 0 ? now_ns - since_ns_ : 0);
}

std::int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace spillway
