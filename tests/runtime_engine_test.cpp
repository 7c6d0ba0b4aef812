// The engine around its steps: the state it starts from, evaluation, skipped steps, and times.
#include <cmath>

#include <gtest/gtest.h>

#include "support/training.h"

namespace spillway {
namespace {

using testing::RunSetup;
using testing::ScratchFolder;
using testing::fill_batch;
using testing::make_engine;
using testing::tiny_run;

struct Placement {
  OffloadDevice parameters, optimizer;
};

constexpr Placement kPlacements[] = {
    {OffloadDevice::none, OffloadDevice::none}, {OffloadDevice::none, OffloadDevice::cpu}, {OffloadDevice::none, OffloadDevice::nvme},
    {OffloadDevice::cpu, OffloadDevice::none},  {OffloadDevice::cpu, OffloadDevice::cpu},  {OffloadDevice::cpu, OffloadDevice::nvme},
    {OffloadDevice::nvme, OffloadDevice::none}, {OffloadDevice::nvme, OffloadDevice::cpu}, {OffloadDevice::nvme, OffloadDevice::nvme},
};

RunSetup placed(RunSetup setup, const Placement& placement, const ScratchFolder& folder) {
  setup.config.offload_param.device = placement.parameters;
  setup.config.offload_optimizer.device = placement.optimizer;
  setup.config.offload_param.nvme_paths = setup.config.offload_optimizer.nvme_paths = {folder.path()};
  return setup;
}

std::string text_of(const Placement& placement) {
  return "parameters on " + std::to_string(static_cast<int>(placement.parameters)) + ", optimizer on " +
         std::to_string(static_cast<int>(placement.optimizer));
}

TEST(Engine, StartsFromTheSameStateOnEveryPlacement) {
  const std::uint64_t expected = make_engine(tiny_run())->state_hash();
  for (const Placement& placement : kPlacements) {
    const ScratchFolder folder;
    const RunSetup setup = placed(tiny_run(), placement, folder);
    const std::unique_ptr<Engine> engine = make_engine(setup);
    EXPECT_EQ(engine->state_hash(), expected) << text_of(placement);
    EXPECT_EQ(engine->state_hash(), expected) << "looking changed it, " << text_of(placement);
    fill_batch(*engine, setup, 0);
    engine->step();
    EXPECT_NE(engine->state_hash(), expected) << "a step changed nothing, " << text_of(placement);
  }
}

TEST(Engine, ARehearsalChangesNothing) {
  for (const Placement& placement : {kPlacements[0], kPlacements[8]}) {
    const ScratchFolder folder;
    RunSetup setup = placed(tiny_run(), placement, folder);
    const std::uint64_t expected = make_engine(setup)->state_hash();
    setup.rehearse = true;
    const std::unique_ptr<Engine> engine = make_engine(setup);
    EXPECT_EQ(engine->state_hash(), expected) << text_of(placement);
    EXPECT_EQ(engine->applied_steps() + engine->skipped_steps(), 0);
    fill_batch(*engine, setup, 0);
    EXPECT_EQ(engine->step().step, 1);
  }
}

// The sum over the batch at the weights a step starts from is the loss that step reports, and nothing is
// different for having been asked.
TEST(Engine, EvaluationIsTheTrainingLossAndChangesNothing) {
  for (const Placement& placement : kPlacements) {
    const ScratchFolder folder;
    const RunSetup setup = placed(tiny_run(), placement, folder);
    const std::unique_ptr<Engine> plain = make_engine(setup), evaluated = make_engine(setup);
    for (int step = 0; step < 3; ++step) {
      fill_batch(*plain, setup, step);
      fill_batch(*evaluated, setup, step);
      // Some tokens without a target.
      for (std::size_t i = 0; i < 5; ++i) plain->targets(0)[i * 3] = evaluated->targets(0)[i * 3] = -1;
      const double counted = static_cast<double>(evaluated->targets(0).size()) - 5.0;
      const std::uint64_t before = evaluated->state_hash();
      const double sum = evaluated->evaluate();
      EXPECT_EQ(evaluated->evaluate(), sum) << text_of(placement);
      EXPECT_EQ(evaluated->state_hash(), before) << text_of(placement);
      const StepResult a = plain->step(), b = evaluated->step();
      EXPECT_EQ(b.verdict.loss, sum / counted) << text_of(placement) << ", step " << step + 1;
      EXPECT_EQ(a.verdict.loss, b.verdict.loss);
    }
    EXPECT_EQ(plain->state_hash(), evaluated->state_hash()) << text_of(placement);
  }
}

TEST(Engine, ASkippedStepChangesNoStateAndNamesATensor) {
  for (const Placement& placement : {kPlacements[0], kPlacements[4], kPlacements[8]}) {
    const ScratchFolder folder;
    RunSetup setup = placed(tiny_run(), placement, folder);
    setup.config.dtype = setup.config.communication_dtype = DType::f16;
    setup.config.loss_scale.initial_scale_power = 30;  // beyond any fp16 gradient
    const std::unique_ptr<Engine> engine = make_engine(setup);
    const std::uint64_t before = engine->state_hash();
    fill_batch(*engine, setup, 0);
    const StepResult result = engine->step();
    EXPECT_TRUE(result.verdict.skip) << text_of(placement);
    EXPECT_FALSE(std::isfinite(result.verdict.gradient_norm));
    EXPECT_TRUE(std::isfinite(result.verdict.loss));
    EXPECT_EQ(engine->state_hash(), before) << text_of(placement);
    EXPECT_EQ(engine->skipped_steps(), 1);
    bool named = false;
    for (const auto& layer : make_layers(setup.spec)) {
      for (const ParamSpec& param : layer->params()) named = named || param.name == result.non_finite_tensor;
    }
    EXPECT_TRUE(named) << "no parameter is called \"" << result.non_finite_tensor << "\"";
  }
}

TEST(Engine, TimesAreThoseOfTheLastFinishedStep) {
  const ScratchFolder folder;
  const RunSetup setup = placed(tiny_run(), kPlacements[8], folder);
  const std::unique_ptr<Engine> engine = make_engine(setup);
  EXPECT_FALSE(engine->last_times().has_value());
  fill_batch(*engine, setup, 0);
  engine->step();
  EXPECT_FALSE(engine->last_times().has_value()) << "the only step's update may still be going on";
  engine->drain();
  const std::optional<StepTimes> first = engine->last_times();
  ASSERT_TRUE(first.has_value());
  ASSERT_EQ(first->tasks.size(), engine->plan().step.tasks.size());
  for (const Lane lane : {Lane::compute, Lane::h2d, Lane::d2h, Lane::cpu, Lane::nvme_read, Lane::nvme_write}) {
    EXPECT_GT(first->busy_ms[static_cast<std::size_t>(lane)], 0.0) << name_of(lane);
  }
  const std::int64_t end = first->tasks.back().end_ns;
  fill_batch(*engine, setup, 1);
  engine->step();
  const std::optional<StepTimes> before = engine->last_times();
  ASSERT_TRUE(before.has_value());
  EXPECT_EQ(before->tasks.back().end_ns, end) << "not drained: still the step before";
  engine->drain();
  EXPECT_GT(engine->last_times()->tasks.back().end_ns, end);
}

}  // namespace
}  // namespace spillway
