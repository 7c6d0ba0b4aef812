// What a run tells of its NVMe tier: how fast each path is, how long its requests take, and what steps waited for them.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "runtime/executor.h"
#include "spillway/plan.h"
#include "spillway/swap_store.h"

namespace spillway::app {

class NvmeReport {
 public:
  // Before the first step. Borrowed; nullptr: nothing is on NVMe.
  void start(const SwapStore* store);

  // A step's tasks have ended at these times; step after step.
  void note_step(const Program& program, std::span<const TaskTime> times);

  double last_wait_ms() const { return last_wait_ms_; }
  double wait_ms_per_step() const { return steps_ > 0 ? wait_ms_ / static_cast<double>(steps_) : 0.0; }

  // Path by path, since the call before or start().
  std::vector<SwapPathHealth> since_last_look();

  // What the store does from now on is no step's.
  void steps_ended();

  // Path by path, between start() and steps_ended().
  const std::vector<SwapPathHealth>& of_all_steps() const { return all_steps_; }

 private:
  const SwapStore* store_ = nullptr;
  std::vector<SwapPathHealth> at_start_, last_look_, all_steps_;
  std::int64_t step_end_ns_ = std::numeric_limits<std::int64_t>::min();
  double last_wait_ms_ = 0.0, wait_ms_ = 0.0;
  std::int64_t steps_ = 0;
};

}  // namespace spillway::app
