#include "comm/backoff.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace spillway::comm {

int Backoff::next_us() const {
  if (pauses_ < kSpins) return -1;
  return pauses_ < kSpins + kYields ? 0 : sleep_us_;
}

void Backoff::pause() {
  const int us = next_us();
  if (us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(us));
    sleep_us_ = std::min(2 * sleep_us_, kMaxSleepUs);
    return;
  }
  ++pauses_;
  if (us == 0) sched_yield();
}

}  // namespace spillway::comm
