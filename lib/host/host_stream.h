// A stream of the host device: a thread that runs closures in order.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "host/host_event.h"
#include "host/task_ring.h"
#include "spillway/device.h"

namespace spillway::host {

// The first error of a stream's work stays: later work is skipped, but events recorded after it still
// complete, carry the error to those who wait for them, and so nothing hangs. A stream that waits for a
// failed event takes its error over.
class HostStream final : public Stream {
 public:
  // Before each piece of work, sleep 0 .. chaos_max_delay_us, drawn from chaos_seed.
  HostStream(std::string_view name, int chaos_max_delay_us, std::uint64_t chaos_seed);
  // Runs what is queued, then ends the thread. Blocks.
  ~HostStream() override;
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Runs work() after everything enqueued before. Blocks only while TaskRing::kCapacity pieces are queued.
  template <class F>
  void enqueue(F&& work) {
    ring_.push([this, work = std::forward<F>(work)]() mutable { run(work); });
  }

  void copy(void* dst, const void* src, std::int64_t bytes) override;
  void call(const HostCall& function) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void synchronize() override;

 private:
  template <class F>
  void run(F& work) {
    if (error_) return;
    sleep_for_chaos();
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  void sleep_for_chaos();
  void drain(const std::string& name);

  const int chaos_max_delay_us_;
  TaskRing ring_;
  HostEvent end_;  // of synchronize()

  // The stream thread's own.
  std::uint64_t chaos_state_;
  std::exception_ptr error_;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace spillway::host
