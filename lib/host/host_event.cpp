#include "host/host_event.h"

#include <chrono>

namespace spillway::host {

std::int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::uint32_t EventState::next_generation() {
  const std::uint32_t generation = (last_generation() + 1) & FutexCounter::kMask;
  recorded_.store(generation, std::memory_order_relaxed);
  return generation;
}

void EventState::complete(std::uint32_t generation, const std::exception_ptr& error) {
  wait_until_complete((generation - 1) & FutexCounter::kMask);
  if (error) keep_error(generation, error);
  time_ns_.store(monotonic_ns(), std::memory_order_relaxed);
  completed_.publish(generation);
}

std::exception_ptr EventState::wait(std::uint32_t generation) const {
  wait_until_complete(generation);
  if (!any_failed_.load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard lock(mutex_);
  const bool failed = FutexCounter::distance(generation, first_failed_) >= 0 &&
                      FutexCounter::distance(generation, last_failed_) <= 0;
  return failed ? error_ : nullptr;
}

void EventState::wait_until_complete(std::uint32_t generation) const {
  for (std::uint32_t done = completed_.load(); FutexCounter::distance(generation, done) > 0; done = completed_.load())
    completed_.wait_while(done);
}

void EventState::keep_error(std::uint32_t generation, const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  const bool continues = error_ && last_failed_ == ((generation - 1) & FutexCounter::kMask);
  if (!continues) {
    error_ = error;
    first_failed_ = generation;
  }
  last_failed_ = generation;
  any_failed_.store(true, std::memory_order_relaxed);
}

void HostEvent::synchronize() {
  if (const std::exception_ptr error = state_->wait(state_->last_generation())) std::rethrow_exception(error);
}

}  // namespace spillway::host
