// Events of the host device.
//
// Every record() starts a new generation; a wait refers to the generation that was the last one when it
// was called. Generations complete in the order they were recorded, also across streams: a record on
// another stream than the one before completes no earlier than that one.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

#include "host/futex_counter.h"
#include "spillway/device.h"

namespace spillway::host {

// Nanoseconds of the monotonic clock, Device::now_ns().
std::int64_t monotonic_ns();

class EventState {
 public:
  // Recording thread: opens a generation.
  std::uint32_t next_generation();
  // The last one opened, 0 if none.
  std::uint32_t last_generation() const { return recorded_.load(std::memory_order_relaxed); }

  // Stream thread: the work before the record has finished, or was skipped because of `error`.
  void complete(std::uint32_t generation, const std::exception_ptr& error);

  // Blocks until the generation is complete; returns its error, or null.
  std::exception_ptr wait(std::uint32_t generation) const;

  // Whether wait() would return at once.
  bool is_complete(std::uint32_t generation) const { return FutexCounter::distance(generation, completed_.load()) <= 0; }

  std::int64_t time_ns() const { return time_ns_.load(std::memory_order_relaxed); }

 private:
  void wait_until_complete(std::uint32_t generation) const;
  void keep_error(std::uint32_t generation, const std::exception_ptr& error);

  std::atomic<std::uint32_t> recorded_{0};
  FutexCounter completed_;
  std::atomic<std::int64_t> time_ns_{0};

  // The last run of consecutive generations that failed. The flag keeps the mutex out of healthy waits,
  // which must not order waiters among each other.
  std::atomic<bool> any_failed_{false};
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::uint32_t first_failed_ = 0, last_failed_ = 0;
};

class HostEvent final : public Event {
 public:
  void synchronize() override;
  bool finished() const override { return state_->is_complete(state_->last_generation()); }
  std::int64_t time_ns() const override { return state_->time_ns(); }

  // Shared by the event and the records and waits still in streams' queues, so that an event may be
  // destroyed before them.
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
};

}  // namespace spillway::host
