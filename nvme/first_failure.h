// The failure after which nothing is written any more, on whatever path: what is on disk then stays as it was, and the
// error that the caller is told first is the cause, not what followed from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "spillway/io_engine.h"

namespace spillway {

struct FailureFact {
  int extent = 0;
  IoOp op = IoOp::read;
  int error = 0;  // as RingTransfer::error; 0: a checksum
};

class FirstFailure {
 public:
  bool happened() const { return happened_.load(std::memory_order_acquire); }

  void note(const FailureFact& fact) {
    const std::lock_guard lock(mutex_);
    if (happened()) return;
    fact_ = fact;
    happened_.store(true, std::memory_order_release);
  }

  // Only once it has happened.
  FailureFact fact() const {
    const std::lock_guard lock(mutex_);
    return fact_;
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> happened_{false};
  FailureFact fact_;
};

}  // namespace spillway
