#include "host/host_stream.h"

#include <pthread.h>

#include <chrono>
#include <cstring>

namespace spillway::host {

HostStream::HostStream(std::string_view name, int chaos_max_delay_us, std::uint64_t chaos_seed)
    : chaos_max_delay_us_(chaos_max_delay_us),
      chaos_state_(chaos_seed),
      thread_([this, name = std::string(name)] { drain(name); }) {}

HostStream::~HostStream() {
  ring_.push([this] { stopping_ = true; });
  thread_.join();
}

void HostStream::copy(void* dst, const void* src, std::int64_t bytes) {
  enqueue([=] { std::memcpy(dst, src, static_cast<std::size_t>(bytes)); });
}

void HostStream::call(const HostCall& function) {
  enqueue([function] { function(); });
}

void HostStream::record(Event& event) {
  const std::shared_ptr<EventState>& state = static_cast<HostEvent&>(event).state();
  ring_.push([this, state, generation = state->next_generation()] { state->complete(generation, error_); });
}

void HostStream::wait(Event& event) {
  const std::shared_ptr<EventState>& state = static_cast<HostEvent&>(event).state();
  // A stream that has failed still waits: its own events mean that nothing before them is running.
  ring_.push([this, state, generation = state->last_generation()] {
    const std::exception_ptr error = state->wait(generation);
    if (error && !error_) error_ = error;
  });
}

void HostStream::synchronize() {
  record(end_);
  end_.synchronize();
}

void HostStream::sleep_for_chaos() {
  if (chaos_max_delay_us_ <= 0) return;
  // SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
  std::uint64_t z = chaos_state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  const std::uint64_t delay_us = z % (static_cast<std::uint64_t>(chaos_max_delay_us_) + 1);
  std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
}

void HostStream::drain(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());  // the kernel's limit
  while (!stopping_) ring_.run_one();
}

}  // namespace spillway::host
