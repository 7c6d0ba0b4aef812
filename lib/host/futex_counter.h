// A counter that one thread advances and others wait on, asleep in the kernel rather than spinning.
//
// Synchronisation is one-way by design: a waiter acquires what the publisher released, never the
// reverse. Enqueuing work must not order the caller after earlier work, or a missing wait() could not
// show as the data race it is.
#pragma once

#include <atomic>
#include <cstdint>

namespace spillway::host {

class FutexCounter {
 public:
  // Values are modulo 2^31.
  static constexpr std::uint32_t kMask = 0x7fffffffu;

  // How far `value` is ahead of `other`; at most half the range is ahead, the rest behind.
  static constexpr std::int32_t distance(std::uint32_t value, std::uint32_t other) {
    const std::uint32_t ahead = (value - other) & kMask;
    return static_cast<std::int32_t>(ahead << 1) >> 1;
  }

  std::uint32_t load() const { return word_.load(std::memory_order_acquire) >> 1; }

  // Sets the value and wakes all who wait. One thread at a time.
  void publish(std::uint32_t value);

  // Returns once the value differs from `seen`.
  void wait_while(std::uint32_t seen) const;

 private:
  // The value and, in bit 0, whether somebody sleeps: one word, so that neither side can miss the other.
  mutable std::atomic<std::uint32_t> word_{0};
};

}  // namespace spillway::host
