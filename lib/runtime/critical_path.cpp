#include "runtime/critical_path.h"

#include <algorithm>
#include <vector>

namespace spillway {

namespace {

constexpr std::size_t kNone = ~std::size_t{0};

// By task: the one before it on its lane.
std::vector<std::size_t> lane_predecessors(const Program& program) {
  std::array<std::size_t, kLanes> last;
  last.fill(kNone);
  std::vector<std::size_t> before(program.tasks.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    std::size_t& on_lane = last[static_cast<std::size_t>(program.tasks[i].lane)];
    before[i] = on_lane;
    on_lane = i;
  }
  return before;
}

}  // namespace

std::array<double, kLanes> critical_path_ms(const Program& program, std::span<const TaskTime> times, std::int64_t begin_ns) {
  std::array<double, kLanes> critical{};
  if (times.empty()) return critical;
  const std::vector<std::size_t> before = lane_predecessors(program);
  const auto ends_earlier = [](const TaskTime& a, const TaskTime& b) { return a.end_ns < b.end_ns; };
  auto task = static_cast<std::size_t>(std::max_element(times.begin(), times.end(), ends_earlier) - times.begin());
  while (task != kNone && times[task].end_ns > begin_ns) {
    const std::int64_t start_ns = std::max(times[task].start_ns, begin_ns);
    critical[static_cast<std::size_t>(program.tasks[task].lane)] += static_cast<double>(times[task].end_ns - start_ns) * 1e-6;
    // Dependencies and lanes point backwards within a run, so this ends. What a run before did ended before begin_ns.
    std::size_t latest = before[task];
    for (const Dependency& dependency : program.tasks[task].dependencies) {
      const auto source = static_cast<std::size_t>(dependency.task);
      if (dependency.previous_run) continue;
      if (latest == kNone || times[source].end_ns > times[latest].end_ns) latest = source;
    }
    task = latest;
  }
  return critical;
}

double nvme_wait(const std::array<double, kLanes>& critical) {
  double sum = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (is_nvme(static_cast<Lane>(lane))) sum += critical[static_cast<std::size_t>(lane)];
  }
  return sum;
}

}  // namespace spillway
