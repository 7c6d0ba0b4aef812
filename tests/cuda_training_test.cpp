// Training on a CUDA device: what it computes, beside the host device, and what it never does within a step.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "cuda_sim/cuda_sim.h"
#include "support/training.h"

namespace spillway {
namespace {

using testing::RunResult;
using testing::RunSetup;
using testing::ScratchFolder;
using testing::tiny_run;
using testing::train;

RunSetup run_in(DType dtype) {
  RunSetup setup = tiny_run();
  setup.config.dtype = setup.config.communication_dtype = dtype;
  setup.steps = static_cast<int>(testing::fewer_if_sanitized(20, 4));
  return setup;
}

class Losses : public ::testing::TestWithParam<DType> {};

// Both devices round where the storage dtype rounds, and add in f32, in different orders; what that comes to after twenty
// steps of learning is bounded by a few roundings of the dtype, relative to the loss.
TEST_P(Losses, AreThoseOfTheHostDeviceOverTwentySteps) {
  RunSetup setup = run_in(GetParam());
  const RunResult on_cuda = train(setup);
  setup.on_host = true;
  const RunResult on_host = train(setup);
  const double bound = GetParam() == DType::f32 ? 2e-5 : GetParam() == DType::f16 ? 2e-3 : 1e-2;
  ASSERT_EQ(on_cuda.steps.size(), on_host.steps.size());
  for (std::size_t i = 0; i < on_cuda.steps.size(); ++i) {
    const GateVerdict &here = on_cuda.steps[i].verdict, &there = on_host.steps[i].verdict;
    EXPECT_EQ(here.skip, there.skip) << "step " << i;
    EXPECT_NEAR(here.loss, there.loss, bound * there.loss) << "step " << i;
  }
  const double most = setup.steps < 20 ? 1.0 : 0.9;
  EXPECT_LT(on_cuda.steps.back().verdict.loss, most * on_cuda.steps.front().verdict.loss) << "nothing was learnt, so nothing was compared";
}
INSTANTIATE_TEST_SUITE_P(Dtypes, Losses, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Tasks on threads of the host that need what a stream has done: where the plan itself makes the host wait.
std::int64_t planned_waits(const Plan& plan) {
  const auto on_stream = [](Lane lane) { return lane == Lane::compute || lane == Lane::h2d || lane == Lane::d2h || lane == Lane::comm; };
  std::int64_t waits = 0;
  for (const Task& task : plan.step.tasks) {
    if (on_stream(task.lane)) continue;
    waits += std::count_if(task.dependencies.begin(), task.dependencies.end(), [&](const Dependency& d) {
      return on_stream(plan.step.tasks[static_cast<std::size_t>(d.task)].lane);
    });
  }
  return waits;
}

class WithinAStep : public ::testing::TestWithParam<OffloadDevice> {};

TEST_P(WithinAStep, CopiesAreAsynchronousNothingIsAllocatedAndTheHostWaitsWhereThePlanSays) {
  const ScratchFolder folder;
  RunSetup setup = tiny_run();
  setup.config.offload_optimizer = setup.config.offload_param = {GetParam(), {folder.path()}, true, 1.0};
  setup.steps = 8;
  constexpr int kWarm = 3;  // the first steps choose algorithms and fill pools
  std::int64_t waits = 0;
  cuda_sim::Statistics after;
  setup.before_step = [&](Engine& engine, int step) {
    if (step != kWarm) return;
    engine.drain();
    waits = planned_waits(engine.plan());
    cuda_sim::reset_statistics();
  };
  setup.after_steps = [&](Engine& engine) {
    engine.drain();
    after = cuda_sim::statistics();
  };
  train(setup);
  const std::int64_t steps = setup.steps - kWarm;
  EXPECT_GT(after.launches, 0);
  EXPECT_EQ(after.pageable_copies, 0);
  EXPECT_EQ(after.allocations, 0);
  EXPECT_EQ(after.frees, 0);
  EXPECT_EQ(after.stream_synchronisations, 0);
  EXPECT_EQ(after.device_synchronisations, 0);
  // Beside the plan's own: the caller's, at the gate; and, once a step, for the last tasks of each stream of the step
  // before the last, whose events are about to be used again. A lane that also has transfers to reap may come to wait for
  // the same event twice.
  constexpr std::int64_t kStreams = 4;
  EXPECT_LE(after.event_synchronisations, (steps + 1) * (2 * waits + 1 + kStreams));
}
INSTANTIATE_TEST_SUITE_P(Placements, WithinAStep, ::testing::Values(OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme));

}  // namespace
}  // namespace spillway
