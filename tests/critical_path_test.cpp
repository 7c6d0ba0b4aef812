// What a measured step waited for: the path walked back over its tasks' times.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/critical_path.h"
#include "spillway/cost.h"
#include "support/plan_requests.h"

namespace spillway {
namespace {

constexpr std::int64_t kMs = 1'000'000;

Task task_on(Lane lane, std::vector<Dependency> dependencies) {
  Task task;
  task.kind = TaskKind::forward;
  task.lane = lane;
  task.dependencies = std::move(dependencies);
  return task;
}

std::vector<TaskTime> times_ms(const std::vector<std::pair<std::int64_t, std::int64_t>>& spans) {
  std::vector<TaskTime> times;
  for (const auto& [start, end] : spans) times.push_back({start * kMs, end * kMs});
  return times;
}

double on(const std::array<double, kLanes>& path, Lane lane) { return path[static_cast<std::size_t>(lane)]; }

// Read, update, write: a chain over three lanes, of which each has all the time of its task.
TEST(CriticalPath, OfAChainIsAllOfIt) {
  const Program program{{task_on(Lane::nvme_read, {}), task_on(Lane::cpu, {{0, false}}), task_on(Lane::nvme_write, {{1, false}})}};
  const auto path = critical_path_ms(program, times_ms({{10, 14}, {14, 20}, {20, 23}}), 10 * kMs);
  EXPECT_DOUBLE_EQ(on(path, Lane::nvme_read), 4.0);
  EXPECT_DOUBLE_EQ(on(path, Lane::cpu), 6.0);
  EXPECT_DOUBLE_EQ(on(path, Lane::nvme_write), 3.0);
  EXPECT_DOUBLE_EQ(nvme_wait(path), 7.0);
}

// The read is done long before the computation that ends with it: nothing waited for it.
TEST(CriticalPath, LeavesOutWhatIsHiddenBehindAnotherLane) {
  const Program program{{task_on(Lane::nvme_read, {}), task_on(Lane::compute, {}), task_on(Lane::cpu, {{0, false}, {1, false}})}};
  const auto path = critical_path_ms(program, times_ms({{0, 5}, {0, 9}, {9, 12}}), 0);
  EXPECT_DOUBLE_EQ(nvme_wait(path), 0.0);
  EXPECT_DOUBLE_EQ(on(path, Lane::compute), 9.0);
  EXPECT_DOUBLE_EQ(on(path, Lane::cpu), 3.0);
}

// The lane is busy with another task when what the second read needs is there.
TEST(CriticalPath, GoesThroughTheTaskBeforeOnTheLane) {
  const Program program{{task_on(Lane::nvme_read, {}), task_on(Lane::compute, {}), task_on(Lane::nvme_read, {{1, false}}), task_on(Lane::cpu, {{2, false}})}};
  const auto path = critical_path_ms(program, times_ms({{0, 6}, {0, 2}, {6, 11}, {11, 12}}), 0);
  EXPECT_DOUBLE_EQ(on(path, Lane::nvme_read), 11.0);
  EXPECT_DOUBLE_EQ(on(path, Lane::compute), 0.0);
}

// Steps overlap: the part of a task that ran under the step before belongs to that one.
TEST(CriticalPath, BeginsWhereTheStepBeforeEnded) {
  const Program program{{task_on(Lane::nvme_fetch, {{1, true}}), task_on(Lane::compute, {{0, false}})}};
  const auto path = critical_path_ms(program, times_ms({{3, 13}, {13, 15}}), 10 * kMs);
  EXPECT_DOUBLE_EQ(on(path, Lane::nvme_fetch), 3.0);
  EXPECT_DOUBLE_EQ(on(path, Lane::compute), 2.0);
  EXPECT_DOUBLE_EQ(nvme_wait(critical_path_ms(program, times_ms({{3, 9}, {9, 15}}), 10 * kMs)), 0.0);
}

TEST(CriticalPath, CountsNoGaps) {
  const Program program{{task_on(Lane::nvme_read, {}), task_on(Lane::cpu, {{0, false}})}};
  const auto path = critical_path_ms(program, times_ms({{0, 4}, {7, 9}}), 0);
  EXPECT_DOUBLE_EQ(nvme_wait(path), 4.0);
  EXPECT_DOUBLE_EQ(on(path, Lane::cpu), 2.0);
}

TEST(CriticalPath, OfNothingIsNothing) { EXPECT_EQ(nvme_wait(critical_path_ms({}, {}, 0)), 0.0); }

// Played on paper, a step has the path that simulate() gives it.
TEST(CriticalPath, IsThatOfTheSimulation) {
  PlanRequest request = testing::small_request();
  request.offload_param = request.offload_optimizer = OffloadDevice::nvme;
  const Plan plan = build_plan(request);
  MachineRates rates;
  for (const double nvme : {1e6, 1e8, 1e12}) {
    rates.nvme_read_bytes = rates.nvme_write_bytes = rates.nvme_mixed_bytes = nvme;
    const Simulation simulation = simulate(plan.step, task_seconds(plan, plan.step, rates), rates);
    std::vector<TaskTime> times(plan.step.tasks.size());
    double end = 0.0;
    for (const SimulatedTask& task : simulation.timeline) {
      times[static_cast<std::size_t>(task.task)] = {std::llround(task.start_s * 1e9), std::llround(task.end_s * 1e9)};
      end = std::max(end, task.end_s);
    }
    const auto path = critical_path_ms(plan.step, times, std::llround((end - simulation.step_s) * 1e9));
    for (std::size_t lane = 0; lane < kLanes; ++lane) EXPECT_NEAR(path[lane], simulation.critical_s[lane] * 1e3, 1e-3 * simulation.step_s * 1e3) << lane;
  }
}

}  // namespace
}  // namespace spillway
