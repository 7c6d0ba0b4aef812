// What goes wrong inside a run: a disk that fails or lies stops it with a text that says where; a gradient that
// is not finite changes nothing.
#include <atomic>
#include <cerrno>
#include <cmath>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/error.h"
#include "support/faulty_engine.h"
#include "support/training.h"

namespace spillway {
namespace {

using testing::fill_batch;
using testing::make_engine;
using testing::RunSetup;
using testing::ScratchFolder;
using testing::tiny_run;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

RunSetup run_on_nvme(const std::string& folder) {
  RunSetup setup = tiny_run();
  for (OffloadConfig* offload : {&setup.config.offload_param, &setup.config.offload_optimizer}) {
    offload->device = OffloadDevice::nvme;
    offload->nvme_path = folder;
  }
  return setup;
}

void take_step(Engine& engine, const RunSetup& setup, int step) {
  fill_batch(engine, setup, step);
  engine.step();
}

// A step's transfers may end after step() has returned: the error comes out of it or of what follows.
std::string io_error_of_next_steps(Engine& engine, const RunSetup& setup) {
  try {
    for (int step = 1; step < 3; ++step) take_step(engine, setup, step);
    engine.drain();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no error";
}

TEST(EngineFault, AFlippedBitInATileStopsTheRunAndNamesTheTile) {
  const ScratchFolder folder;
  const RunSetup setup = run_on_nvme(folder.path());
  const std::unique_ptr<Engine> engine = make_engine(setup);
  take_step(*engine, setup, 0);
  engine->drain();
  const std::size_t tile = engine->plan().tiles.size() / 2;
  const ExtentPlan& extent = engine->plan().extents[static_cast<std::size_t>(engine->plan().tiles[tile].state_extent)];
  const std::string layer = engine->plan().layers[static_cast<std::size_t>(engine->plan().tiles[tile].layer)].name;
  engine->store()->corrupt_for_test(engine->plan().tiles[tile].state_extent, 4097, 6);
  EXPECT_THAT(io_error_of_next_steps(*engine, setup),
              AllOf(HasSubstr("[nvme] read " + extent.name), HasSubstr(layer), HasSubstr(folder.path()),
                    ContainsRegex("checksum of what was written [0-9a-f]{16}, of what was read back [0-9a-f]{16}")));
  EXPECT_EQ(engine->store()->counters().checksum_failures, 1);
  EXPECT_THROW(engine->state_hash(), IoError) << "a run that has failed stays failed";
}

TEST(EngineFault, AFlippedBitInWeightsStopsTheRunAndNamesThem) {
  const ScratchFolder folder;
  const RunSetup setup = run_on_nvme(folder.path());
  const std::unique_ptr<Engine> engine = make_engine(setup);
  take_step(*engine, setup, 0);
  engine->drain();
  const TilePlan& tile = engine->plan().tiles.back();
  engine->store()->corrupt_for_test(tile.weights_extent, 0, 0);
  EXPECT_THAT(io_error_of_next_steps(*engine, setup),
              AllOf(HasSubstr(engine->plan().extents[static_cast<std::size_t>(tile.weights_extent)].name), HasSubstr("checksum")));
}

class FailingDisk : public ::testing::TestWithParam<int> {};

TEST_P(FailingDisk, StopsTheRunWithTheSystemsReasonAndTheTile) {
  const ScratchFolder folder;
  RunSetup setup = run_on_nvme(folder.path());
  std::atomic<bool> armed{false};  // once the initial state is written
  setup.make_io_engine = [&](const IoEngineOptions& options) -> std::unique_ptr<IoEngine> {
    return std::make_unique<testing::FaultyEngine>(make_io_engine(options),
                                                   testing::FaultSchedule{.fail_at = 7, .fail_error = GetParam(), .armed = &armed});
  };
  const std::unique_ptr<Engine> engine = make_engine(setup);
  armed = true;
  const char* const reason = GetParam() == EIO ? "Input/output error" : "No space left on device";
  EXPECT_THAT(io_error_of_next_steps(*engine, setup),
              AllOf(ContainsRegex("\\[nvme\\] (read|write) .*tile [0-9]+ of "), HasSubstr(folder.path()), HasSubstr(reason)));
}

INSTANTIATE_TEST_SUITE_P(Errno, FailingDisk, ::testing::Values(EIO, ENOSPC),
                         [](const auto& info) { return info.param == EIO ? "EIO" : "ENOSPC"; });

TEST(EngineFault, ShortAndRetriedTransfersChangeNothing) {
  const ScratchFolder folder, other;
  RunSetup setup = run_on_nvme(folder.path());
  setup.steps = 4;
  const std::uint64_t expected = train(setup).state_hash;
  RunSetup faulty = run_on_nvme(other.path());
  faulty.steps = 4;
  faulty.make_io_engine = [](const IoEngineOptions& options) -> std::unique_ptr<IoEngine> {
    return std::make_unique<testing::FaultyEngine>(
        make_io_engine(options), testing::FaultSchedule{.short_rate = 0.3, .retry_rate = 0.2, .reorder = true});
  };
  EXPECT_EQ(train(faulty).state_hash, expected);
}

// No fp16 gradient survives this scale, from the head down: of all that are not finite, the first tensor of the
// first layer is the first.
TEST(EngineFault, AGradientThatIsNotFiniteIsNamedAndChangesNothing) {
  const ScratchFolder folder;
  RunSetup setup = run_on_nvme(folder.path());
  setup.config.dtype = setup.config.communication_dtype = DType::f16;
  setup.config.loss_scale.dynamic = false;
  setup.config.loss_scale.static_scale = 0x1p100;
  const std::unique_ptr<Engine> engine = make_engine(setup);
  const std::uint64_t before = engine->state_hash();
  fill_batch(*engine, setup, 0);
  const StepResult result = engine->step();
  EXPECT_TRUE(result.verdict.skip);
  EXPECT_FALSE(std::isfinite(result.verdict.gradient_norm));
  EXPECT_TRUE(std::isfinite(result.verdict.loss)) << "the loss itself is not scaled";
  EXPECT_EQ(result.non_finite_tensor, make_layers(setup.spec).front()->params().front().name);
  EXPECT_EQ(engine->skipped_steps(), 1);
  EXPECT_EQ(engine->applied_steps(), 0);
  EXPECT_EQ(engine->state_hash(), before);
}

// The trajectory of DeepSpeed's scaler (hysteresis 1, window 3) from a scale that is too large: halved by each
// skipped step; once the steps are clean, doubled by the fourth of them, and halved again if that was too much.
TEST(EngineFault, TheLossScaleFindsItsWayDownAndUp) {
  RunSetup setup = tiny_run();
  setup.config.dtype = setup.config.communication_dtype = DType::f16;
  setup.config.loss_scale.initial_scale_power = 26;
  setup.config.loss_scale.hysteresis = 1;
  setup.config.loss_scale.window = 3;
  const std::unique_ptr<Engine> engine = make_engine(setup);
  double expected = 0x1p26;
  int clean = 0, skipped = 0, doubled = 0;
  for (int step = 0; step < 40; ++step) {
    const std::uint64_t before = engine->state_hash();
    fill_batch(*engine, setup, 0);
    const StepResult result = engine->step();
    ASSERT_EQ(result.verdict.loss_scale, expected) << "step " << step + 1;
    ASSERT_EQ(engine->state_hash() == before, result.verdict.skip) << "step " << step + 1;
    clean = result.verdict.skip ? 0 : clean + 1;
    if (result.verdict.skip) {
      ++skipped;
      expected /= 2;
    } else if (clean > 3 && (clean - 1) % 3 == 0) {
      ++doubled;
      expected *= 2;
    }
  }
  EXPECT_GE(skipped, 4);
  EXPECT_GE(doubled, 2);
  EXPECT_EQ(engine->skipped_steps(), skipped);
  EXPECT_EQ(engine->applied_steps(), 40 - skipped);
}

}  // namespace
}  // namespace spillway
