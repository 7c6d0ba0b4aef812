// The failure after which nothing is written any more, on whatever path: what is on disk then stays as it was, and
// whoever is told first is told the cause, not what followed from it.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

namespace spillway {

class FirstFailure {
 public:
  bool happened() const { return happened_.load(std::memory_order_acquire); }

  // `describe` returns what there is to say, and is called if this is the first one; writes have ended by then.
  template <class Describe>
  void note(Describe describe) {
    const std::lock_guard lock(mutex_);
    if (happened()) return;
    happened_.store(true, std::memory_order_release);
    text_ = describe();
  }

  // Once it has happened; waits for the description.
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> happened_{false};
  std::string text_;
};

}  // namespace spillway
