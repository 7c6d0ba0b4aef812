// A lock and a condition on futexes that ThreadSanitizer cannot see: a mutex in a stream's queue would order the host
// after a stream's work and hide every missing wait. Only for uninstrumented code.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace cuda_sim {

// EAGAIN and EINTR are normal: callers look at the word again. `timeout` is relative, null for none.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, const timespec* timeout = nullptr) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, timeout, nullptr, 0);
}

inline void futex_wake(std::atomic<std::uint32_t>& word, int threads) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

// Satisfies BasicLockable: std::lock_guard and std::unique_lock take it.
class RawLock {
 public:
  void lock() {
    std::uint32_t expected = kFree;
    if (state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire)) return;
    while (state_.exchange(kContended, std::memory_order_acquire) != kFree) futex_wait(state_, kContended);
  }

  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kContended) futex_wake(state_, 1);
  }

 private:
  static constexpr std::uint32_t kFree = 0, kHeld = 1, kContended = 2;
  std::atomic<std::uint32_t> state_{kFree};
};

class Condition {
 public:
  // As std::condition_variable: may return early; the caller checks what it waits for. `lock` is held by the caller.
  template <class Lock>
  void wait(Lock& lock) {
    wait(lock, nullptr);
  }

  template <class Lock>
  void wait_for_ms(Lock& lock, int timeout_ms) {
    const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
    wait(lock, &timeout);
  }

  // With the lock held.
  void notify_all() {
    changes_.fetch_add(1, std::memory_order_relaxed);
    if (waiting_ > 0) futex_wake(changes_, INT_MAX);
  }

 private:
  template <class Lock>
  void wait(Lock& lock, const timespec* timeout) {
    const std::uint32_t seen = changes_.load(std::memory_order_relaxed);
    ++waiting_;
    lock.unlock();
    futex_wait(changes_, seen, timeout);
    lock.lock();
    --waiting_;
  }

  std::atomic<std::uint32_t> changes_{0};
  int waiting_ = 0;  // guarded by the lock
};

}  // namespace cuda_sim
