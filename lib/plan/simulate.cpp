// Plays a program on paper.
#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "spillway/cost.h"
#include "spillway/error.h"

namespace spillway {

namespace {

constexpr int kRuns = 5;
constexpr int kSteady = 3;  // the run that is reported: later than any start-up effect, and with a run after it, whose first
                            // reads compete for the disk with this one's last writes

enum Resource { cores, disk, link_down, link_up, device, network, kResources };

struct Demand {
  Resource resource;
  double share;  // of the resource, when running at full speed
};

// Both at once go so much slower that together they move the mixed rate: all of the disk each if that is no
// more than either alone, half each if the directions do not hinder each other.
double disk_share(double alone, const MachineRates& rates) { return std::min(1.0, alone / rates.nvme_mixed_bytes); }

Demand demand_of(Lane lane, const MachineRates& rates) {
  const double one_core = 1.0 / std::max(1, rates.cores);
  switch (lane) {
    case Lane::compute: return {rates.device_shares_cores ? cores : device, 1.0};
    case Lane::h2d: return rates.device_shares_cores ? Demand{cores, one_core} : Demand{link_down, 1.0};
    case Lane::d2h: return rates.device_shares_cores ? Demand{cores, one_core} : Demand{link_up, 1.0};
    case Lane::comm: return {network, 1.0};
    case Lane::cpu: return {cores, 1.0};
    case Lane::snapshot: return {cores, one_core};
    case Lane::nvme_fetch:
    case Lane::nvme_read: return {disk, disk_share(rates.nvme_read_bytes, rates)};
    case Lane::nvme_write: return {disk, disk_share(rates.nvme_write_bytes, rates)};
  }
  return {cores, 1.0};
}

class Player {
 public:
  Player(const Program& program, const std::vector<double>& seconds, const MachineRates& rates)
      : program_(program), seconds_(seconds), n_(program.tasks.size()) {
    for (std::size_t i = 0; i < n_; ++i) queues_[static_cast<std::size_t>(program.tasks[i].lane)].push_back(i);
    for (std::size_t lane = 0; lane < kLanes; ++lane) demands_[lane] = demand_of(static_cast<Lane>(lane), rates);
    start_.assign(n_ * kRuns, 0.0);
    end_.assign(n_ * kRuns, -1.0);
    cause_.assign(n_ * kRuns, kNone);
  }

  Simulation run();

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  // The lane's next task as a number through all runs.
  std::size_t head(std::size_t lane) const {
    const auto& queue = queues_[lane];
    if (queue.empty() || position_[lane] >= queue.size() * kRuns) return kNone;
    return position_[lane] / queue.size() * n_ + queue[position_[lane] % queue.size()];
  }
  bool ready(std::size_t number, std::size_t lane);
  bool start_what_can();
  void advance();
  Simulation report() const;

  const Program& program_;
  const std::vector<double>& seconds_;
  std::size_t n_;
  std::array<std::vector<std::size_t>, kLanes> queues_;
  std::array<Demand, kLanes> demands_{};
  std::array<std::size_t, kLanes> position_{};
  std::array<std::size_t, kLanes> running_;
  std::array<double, kLanes> remaining_{};
  std::array<std::size_t, kLanes> last_;  // last finished task of the lane
  std::vector<double> start_, end_;
  std::vector<std::size_t> cause_;  // the predecessor that finished last
  double now_ = 0.0;
};

bool Player::ready(std::size_t number, std::size_t lane) {
  std::size_t latest = last_[lane];
  const std::size_t run = number / n_;
  for (const Dependency& d : program_.tasks[number % n_].dependencies) {
    if (d.previous_run && run == 0) continue;
    const std::size_t source = (run - (d.previous_run ? 1 : 0)) * n_ + static_cast<std::size_t>(d.task);
    if (end_[source] < 0.0) return false;
    if (latest == kNone || end_[source] > end_[latest]) latest = source;
  }
  cause_[number] = latest;
  return true;
}

bool Player::start_what_can() {
  bool any_running = false;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (running_[lane] == kNone) {
      const std::size_t number = head(lane);
      if (number == kNone || !ready(number, lane)) continue;
      running_[lane] = number;
      remaining_[lane] = seconds_[number % n_];
      start_[number] = now_;
    }
    any_running = true;
  }
  return any_running;
}

// To the next moment at which a task finishes.
void Player::advance() {
  std::array<double, kResources> load{};
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (running_[lane] != kNone) load[demands_[lane].resource] += demands_[lane].share;
  }
  const auto speed = [&](std::size_t lane) { return 1.0 / std::max(1.0, load[demands_[lane].resource]); };
  double step = std::numeric_limits<double>::max();
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (running_[lane] != kNone) step = std::min(step, remaining_[lane] / speed(lane));
  }
  now_ += step;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (running_[lane] == kNone) continue;
    remaining_[lane] -= step * speed(lane);
    if (remaining_[lane] > 1e-12) continue;
    end_[running_[lane]] = now_;
    last_[lane] = running_[lane];
    running_[lane] = kNone;
    ++position_[lane];
  }
}

Simulation Player::run() {
  running_.fill(kNone);
  last_.fill(kNone);
  while (start_what_can()) advance();
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if (head(lane) != kNone) throw Error(fmt::format("[plan] the {} lane can never finish: a task waits for one behind it", name_of(static_cast<Lane>(lane))));
  }
  return report();
}

Simulation Player::report() const {
  Simulation simulation;
  const auto finish_of = [&](int run) {
    const auto first = end_.begin() + static_cast<std::ptrdiff_t>(n_) * run;
    return static_cast<std::size_t>(std::max_element(first, first + static_cast<std::ptrdiff_t>(n_)) - end_.begin());
  };
  const std::size_t last = finish_of(kSteady);
  const double window_begin = end_[finish_of(kSteady - 1)];
  simulation.step_s = end_[last] - window_begin;
  double origin = std::numeric_limits<double>::max();
  for (std::size_t i = 0; i < n_; ++i) origin = std::min(origin, start_[kSteady * n_ + i]);
  for (std::size_t i = 0; i < n_; ++i) {
    const std::size_t number = kSteady * n_ + i;
    simulation.busy_s[static_cast<std::size_t>(program_.tasks[i].lane)] += end_[number] - start_[number];
    simulation.timeline.push_back({static_cast<int>(i), start_[number] - origin, end_[number] - origin});
  }
  for (std::size_t number = last; number != kNone && end_[number] > window_begin; number = cause_[number]) {
    simulation.critical_s[static_cast<std::size_t>(program_.tasks[number % n_].lane)] += end_[number] - std::max(start_[number], window_begin);
  }
  simulation.binding = static_cast<Lane>(std::max_element(simulation.critical_s.begin(), simulation.critical_s.end()) - simulation.critical_s.begin());
  return simulation;
}

}  // namespace

Simulation simulate(const Program& program, const std::vector<double>& seconds, const MachineRates& rates) {
  if (program.tasks.empty()) return {};
  return Player(program, seconds, rates).run();
}

}  // namespace spillway
