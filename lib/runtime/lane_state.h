// What the lanes know of each other: how far every task of a program has come.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "runtime/executor.h"

namespace spillway {

// A number that only grows and that threads can wait for.
class Counter {
 public:
  static constexpr std::uint32_t kReleased = std::numeric_limits<std::uint32_t>::max();

  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }

  // Raises the value and wakes its waiters. Once kReleased it stays so.
  void reach(std::uint32_t value) {
    std::uint32_t seen = value_.load(std::memory_order_relaxed);
    while (seen < value && !value_.compare_exchange_weak(seen, value, std::memory_order_release, std::memory_order_relaxed)) {
    }
    value_.notify_all();
  }

  // Lets every present and future waiter go. They find out why from whoever released them.
  void release() { reach(kReleased); }

  void wait(std::uint32_t value) const {
    for (std::uint32_t seen; (seen = value_.load(std::memory_order_acquire)) < value;) value_.wait(seen, std::memory_order_acquire);
  }

 private:
  std::atomic<std::uint32_t> value_{0};
};

// A program as the lanes play it.
struct LaneProgram {
  const Program* program = nullptr;
  std::array<std::vector<int>, kLanes> tasks;  // of each lane, in plan order
  // Per task, the last run in which it was issued: a stream task has been enqueued and its event
  // recorded, a host task has finished.
  std::vector<Counter> issued;
  // Per task and parity of the run; stream tasks only.
  std::array<std::vector<std::unique_ptr<Event>>, 2> begin_events, end_events;
  std::array<std::vector<TaskTime>, 2> times;
  std::uint32_t submitted = 0;                     // runs; caller's thread only
  std::array<std::uint32_t, 2> order_of_run{};     // which submission the run of a parity was; likewise
};

}  // namespace spillway
