// Where rings deliver a channel's transfers when they are done.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "transfer_list.h"

namespace spillway {

class Mailbox {
 public:
  // For rings. The mailbox may be gone once its owner has taken the last transfer, so nothing is touched after the lock.
  void deliver(RingTransfer& transfer) {
    const std::lock_guard lock(mutex_);
    delivered_.push(transfer);
    arrived_.notify_one();
  }

  // Everything delivered so far; waits for something if `wait`.
  TransferList take(bool wait) {
    std::unique_lock lock(mutex_);
    if (wait) arrived_.wait(lock, [&] { return !delivered_.empty(); });
    return std::move(delivered_);
  }

  // The owner wants nothing any more: rings give up what has not begun.
  void close() { closed_.store(true, std::memory_order_relaxed); }
  bool closed() const { return closed_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  TransferList delivered_;
  std::atomic<bool> closed_{false};
};

}  // namespace spillway
