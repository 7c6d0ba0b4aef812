#include <random>

#include <gtest/gtest.h>

#include "spillway/cost.h"
#include "spillway/error.h"
#include "support/plan_requests.h"

namespace spillway {
namespace {

Task task_on(Lane lane, std::vector<Dependency> dependencies) {
  Task task;
  task.kind = TaskKind::forward;
  task.lane = lane;
  task.dependencies = std::move(dependencies);
  return task;
}

MachineRates separate_resources() {
  MachineRates rates;
  rates.device_shares_cores = false;
  return rates;
}

// Three tasks in a chain over three lanes, chained to the next run by nothing: the slowest lane decides.
TEST(Simulate, APipelineRunsAtThePaceOfItsSlowestLane) {
  Program program;
  program.tasks = {task_on(Lane::nvme_read, {}), task_on(Lane::cpu, {{0, false}}), task_on(Lane::d2h, {{1, false}})};
  const Simulation s = simulate(program, {2.0, 5.0, 1.0}, separate_resources());
  EXPECT_NEAR(s.step_s, 5.0, 1e-9);
  EXPECT_EQ(s.binding, Lane::cpu);
  EXPECT_NEAR(s.busy_s[static_cast<std::size_t>(Lane::nvme_read)], 2.0, 1e-9);
}

// The same chain closed by an edge from its end to the next run's start: times add up.
TEST(Simulate, AClosedLoopTakesTheSumOfItsTasks) {
  Program program;
  program.tasks = {task_on(Lane::nvme_read, {{2, true}}), task_on(Lane::cpu, {{0, false}}), task_on(Lane::d2h, {{1, false}})};
  const Simulation s = simulate(program, {2.0, 5.0, 1.0}, separate_resources());
  EXPECT_NEAR(s.step_s, 8.0, 1e-9);
  EXPECT_NEAR(s.critical_s[static_cast<std::size_t>(Lane::nvme_read)], 2.0, 1e-9);
}

TEST(Simulate, LanesThatShareAResourceSlowEachOther) {
  Program program;
  program.tasks = {task_on(Lane::nvme_read, {}), task_on(Lane::nvme_write, {})};
  EXPECT_NEAR(simulate(program, {3.0, 3.0}, separate_resources()).step_s, 6.0, 1e-9);
  program.tasks[1].lane = Lane::cpu;
  EXPECT_NEAR(simulate(program, {3.0, 3.0}, separate_resources()).step_s, 3.0, 1e-9);
}

TEST(Simulate, ReadsAndWritesTogetherMoveTheMixedRate) {
  MachineRates rates = separate_resources();
  rates.nvme_read_bytes = 2e9;
  rates.nvme_write_bytes = 1e9;
  rates.nvme_mixed_bytes = 2e9;
  Program program;
  program.tasks = {task_on(Lane::nvme_read, {}), task_on(Lane::nvme_write, {})};
  // 4 GB and 2 GB, at 4/3 and 2/3 GB/s.
  EXPECT_NEAR(simulate(program, {2.0, 2.0}, rates).step_s, 3.0, 1e-9);
  rates.nvme_mixed_bytes = 3e9;  // neither hinders the other
  EXPECT_NEAR(simulate(program, {2.0, 2.0}, rates).step_s, 2.0, 1e-9);
}

TEST(Simulate, AWaitThatCannotEndIsAnErrorAndNotAHang) {
  Program program;
  program.tasks = {task_on(Lane::cpu, {{1, false}}), task_on(Lane::cpu, {})};
  EXPECT_THROW(simulate(program, {1.0, 1.0}, separate_resources()), Error);
}

// With everything on NVMe, the next forward runs under the optimizer's last tiles: a barrier between steps would
// cost a good part of them.
TEST(Simulate, StepsChainWithoutABarrier) {
  PlanRequest request = testing::small_request();
  request.offload_optimizer = OffloadDevice::nvme;
  request.offload_param = OffloadDevice::nvme;
  request.persistence_threshold = 1000;  // the head stays: its new weights cross the link
  const Plan plan = build_plan(request);
  MachineRates rates = separate_resources();
  rates.nvme_read_bytes = rates.nvme_write_bytes = rates.nvme_mixed_bytes = 1e9;
  rates.matmul_flops = 1e6 / 1e-3;  // a forward takes a millisecond, a backward three
  Program barred = plan.step;
  const int last = static_cast<int>(barred.tasks.size()) - 1;
  for (std::size_t i = 0; i < barred.tasks.size(); ++i) {
    for (int back = 0; back < 12; ++back) barred.tasks[i].dependencies.push_back({last - back, true});
  }
  const double chained_s = simulate(plan.step, task_seconds(plan, plan.step, rates), rates).step_s;
  const double barred_s = simulate(barred, task_seconds(plan, barred, rates), rates).step_s;
  double optimizer_s = 0.0;
  const std::vector<double> seconds = task_seconds(plan, plan.step, rates);
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    if (plan.step.tasks[i].kind == TaskKind::read_tile) optimizer_s += seconds[i];
  }
  EXPECT_LT(chained_s, barred_s - 0.4 * optimizer_s);
}

// Activations have places on the host that the optimizer's last tiles do not have, and do not queue behind them.
TEST(Simulate, ActivationsLeaveWhileTheStepBeforeIsUpdated) {
  PlanRequest request = testing::small_request();
  request.layers.insert(request.layers.begin() + 1, 20, request.layers[1]);
  request.offload_optimizer = OffloadDevice::nvme;
  request.offload_param = OffloadDevice::cpu;
  MachineRates rates = separate_resources();
  rates.task_overhead_s = rates.nvme_latency_s = 0.0;
  rates.nvme_read_bytes = rates.nvme_write_bytes = rates.nvme_mixed_bytes = 1e9;
  rates.matmul_flops = 1e6 / 1e-3;  // a forward takes a millisecond, as a block's state does to come
  const auto step_s = [&](OffloadDevice device) {
    request.offload_activations = device;
    const Plan plan = build_plan(request);
    return simulate(plan.step, task_seconds(plan, plan.step, rates), rates).step_s;
  };
  const double kept_s = step_s(OffloadDevice::none);
  EXPECT_LT(step_s(OffloadDevice::cpu), kept_s * 1.01);
  // 16 KiB a block, twice.
  EXPECT_LT(step_s(OffloadDevice::nvme), kept_s * 1.01 + 20 * 2 * 16384 / 1e9);
}

// Collectives that take less time than the backward pass of a layer are hidden under it, but for those of the first and
// last layers: no memory of an exchange may be handed to whoever computes next.
TEST(Simulate, CollectivesRunUnderCompute) {
  PlanRequest request = testing::small_request();
  const LayerShape block = request.layers[1];
  request.layers.insert(request.layers.begin() + 1, 20, block);
  for (LayerShape& layer : request.layers) layer.num_elements = 64000;
  request.zero_stage = 3;
  request.world_size = 16;
  const Plan plan = build_plan(request);
  MachineRates rates = separate_resources();
  rates.task_overhead_s = rates.comm_latency_s = 0.0;
  rates.device_bytes = 1e15;
  rates.matmul_flops = 1e6 / 1e-3;        // a forward takes a millisecond, a backward three
  rates.comm_bytes = 120000 / 0.8e-3;     // a gather or an exchange: 0.8
  const Simulation s = simulate(plan.step, task_seconds(plan, plan.step, rates), rates);
  const double compute_s = s.busy_s[static_cast<std::size_t>(Lane::compute)], comm_s = s.busy_s[static_cast<std::size_t>(Lane::comm)];
  EXPECT_GT(comm_s, 0.4 * compute_s);
  EXPECT_LT(s.step_s, compute_s + 5 * 0.8e-3);
}

TEST(Simulate, TerminatesForRandomPlansBetweenTheBusiestLaneAndTheSumOfAll) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    const Plan plan = build_plan(testing::random_request(random));
    const MachineRates rates = separate_resources();
    const std::vector<double> seconds = task_seconds(plan, plan.step, rates);
    const Simulation s = simulate(plan.step, seconds, rates);
    std::array<double, kLanes> alone{};
    double sum = 0.0, busiest = 0.0;
    for (std::size_t t = 0; t < seconds.size(); ++t) {
      alone[static_cast<std::size_t>(plan.step.tasks[t].lane)] += seconds[t];
      sum += seconds[t];
    }
    for (const double busy : alone) busiest = std::max(busiest, busy);
    EXPECT_GE(s.step_s, busiest * (1 - 1e-6));
    EXPECT_LE(s.step_s, sum * (1 + 1e-6));
  }
}

}  // namespace
}  // namespace spillway
