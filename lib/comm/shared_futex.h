// Sleeping on a word that processes share, and waking who sleeps there.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace spillway::comm {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

// Returns when woken, when the word is not `seen`, after `timeout_ms`, or for no reason: callers look again.
inline void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen, int timeout_ms) {
  const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

inline void wake_all(std::atomic<std::uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace spillway::comm
