#include "host/futex_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace spillway::host {

namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) && std::atomic<std::uint32_t>::is_always_lock_free);

// A few microseconds: the next piece of work is often on its way, and sleeping costs more than that.
constexpr int kSpins = 64;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// EAGAIN (the word changed first) and EINTR are normal: callers look at the word again.
void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t argument) {
  syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, argument, nullptr, nullptr, 0);
}

}  // namespace

void FutexCounter::publish(std::uint32_t value) {
  const std::uint32_t old = word_.exchange((value & kMask) << 1, std::memory_order_release);
  if (old & 1u) futex(word_, FUTEX_WAKE, INT_MAX);
}

void FutexCounter::wait_while(std::uint32_t seen) const {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (load() != seen) return;
    pause_briefly();
  }
  for (;;) {
    std::uint32_t word = word_.load(std::memory_order_acquire);
    if (word >> 1 != seen) return;
    if (!(word & 1u) && !word_.compare_exchange_strong(word, word | 1u, std::memory_order_relaxed)) continue;
    futex(word_, FUTEX_WAIT, word | 1u);
  }
}

}  // namespace spillway::host
