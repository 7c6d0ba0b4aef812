#include "app/nvme_report.h"

#include <algorithm>
#include <utility>

#include "runtime/critical_path.h"

namespace spillway::app {

namespace {

std::vector<SwapPathHealth> all_since(const std::vector<SwapPathHealth>& before, const std::vector<SwapPathHealth>& now) {
  std::vector<SwapPathHealth> between;
  for (std::size_t path = 0; path < now.size(); ++path) between.push_back(since(before[path], now[path]));
  return between;
}

}  // namespace

void NvmeReport::start(const SwapStore* store) {
  store_ = store;
  if (store_ != nullptr) at_start_ = last_look_ = store_->health();
}

void NvmeReport::note_step(const Program& program, std::span<const TaskTime> times) {
  if (store_ == nullptr) return;
  last_wait_ms_ = nvme_wait(critical_path_ms(program, times, step_end_ns_));
  wait_ms_ += last_wait_ms_;
  ++steps_;
  for (const TaskTime& time : times) step_end_ns_ = std::max(step_end_ns_, time.end_ns);
}

std::vector<SwapPathHealth> NvmeReport::since_last_look() {
  if (store_ == nullptr) return {};
  const std::vector<SwapPathHealth> before = std::exchange(last_look_, store_->health());
  return all_since(before, last_look_);
}

void NvmeReport::steps_ended() {
  if (store_ != nullptr) all_steps_ = all_since(at_start_, store_->health());
}

}  // namespace spillway::app
