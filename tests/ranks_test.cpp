// Training by many ranks: the same model as one rank would have made, whatever the stage, the placement and the world.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/error.h"
#include "support/state_formats.h"
#include "support/tensors.h"

namespace spillway {
namespace {

using testing::for_each_rank;
using testing::RunResult;
using testing::RunSetup;
using testing::ScratchFolder;
using testing::tiny_run;
using testing::train;
using testing::train_ranks;

// `spilled`: gradients and activations are on NVMe too.
enum class Place { none, cpu, nvme, spilled };
constexpr std::array kPlaces = {Place::none, Place::cpu, Place::nvme, Place::spilled};

void put(RunSetup& setup, Place place, const std::string& folder) {
  const OffloadDevice device = place == Place::none ? OffloadDevice::none : place == Place::cpu ? OffloadDevice::cpu : OffloadDevice::nvme;
  if (place == Place::spilled) {
    setup.config.spillway.offload_gradients = setup.config.offload_activations = OffloadDevice::nvme;
    setup.config.spillway.nvme_paths = {folder};
  }
  setup.config.offload_optimizer = {device, {folder}, true, 1.0};
  if (setup.config.zero_stage == 3) setup.config.offload_param = {device, {folder}, true, 1.0};
}

// 24 samples a step in two micro-batches, for any world that divides 12.
RunSetup run_of(int stage, int world) {
  RunSetup setup = tiny_run();
  setup.config.zero_stage = stage;
  setup.config.accumulation_steps = 2;
  setup.config.micro_batch_size = 12 / world;
  setup.config.train_batch_size = 24;
  setup.steps = testing::on_cuda() ? 2 : static_cast<int>(testing::fewer_if_sanitized(6, 3));
  return setup;
}

std::uint64_t hash_of_ranks(const RunSetup& setup, int world) {
  const std::vector<RunResult> results = train_ranks(setup, world);
  for (const RunResult& result : results) EXPECT_EQ(result.state_hash, results[0].state_hash) << "ranks disagree";
  return results[0].state_hash;
}

class StageAndWorld : public ::testing::TestWithParam<std::tuple<int, int>> {};

// Offload changes where, never what: with several ranks too.
TEST_P(StageAndWorld, IsBitIdenticalForEveryPlacement) {
  const auto [stage, world] = GetParam();
  const ScratchFolder folder;
  std::set<std::uint64_t> hashes;
  for (const Place place : kPlaces) {
    RunSetup setup = run_of(stage, world);
    put(setup, place, folder.path());
    hashes.insert(hash_of_ranks(setup, world));
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST_P(StageAndWorld, IsBitIdenticalForAnyBucketAndOverlap) {
  const auto [stage, world] = GetParam();
  std::set<std::uint64_t> hashes{hash_of_ranks(run_of(stage, world), world)};
  RunSetup small = run_of(stage, world);
  small.config.reduce_bucket_size = small.config.allgather_bucket_size = 1001;
  small.config.prefetch_bucket_size = 0;
  small.config.max_reuse_distance = 0;
  hashes.insert(hash_of_ranks(small, world));
  RunSetup in_order = run_of(stage, world);
  in_order.config.overlap_comm = false;
  in_order.config.param_persistence_threshold = 200;
  hashes.insert(hash_of_ranks(in_order, world));
  EXPECT_EQ(hashes.size(), 1u);
}

// Three of them divide nothing evenly.
std::vector<int> worlds() { return testing::kSanitized ? std::vector<int>{3} : std::vector<int>{2, 3, 4}; }

INSTANTIATE_TEST_SUITE_P(Ranks, StageAndWorld, ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::ValuesIn(worlds())),
                         [](const auto& info) { return "Stage" + std::to_string(std::get<0>(info.param)) + "World" + std::to_string(std::get<1>(info.param)); });

struct Trained {
  std::vector<double> losses;
  std::vector<float> start, masters;  // of all parameters in order, before the first step and after the last
};

// Of the first rank.
std::vector<float> masters_of(Engine& engine, const RunSetup& setup) {
  std::vector<float> masters;
  for (const ParamSpec& param : testing::params_of(setup)) {
    const testing::Values values = testing::read(engine, param, StateSection::master);
    masters.insert(masters.end(), values.begin(), values.end());
  }
  return engine.plan().request.rank == 0 ? masters : std::vector<float>{};
}

Trained train_in_f32(int stage, int world, int steps) {
  RunSetup setup = run_of(stage, world);
  setup.config.dtype = setup.config.communication_dtype = DType::f32;
  setup.steps = steps;
  Trained trained;
  const auto keep = [&](std::vector<float>& values, Engine& engine) {
    if (std::vector<float> masters = masters_of(engine, setup); !masters.empty()) values = std::move(masters);
  };
  setup.before_step = [&](Engine& engine, int step) {
    if (step == 0) keep(trained.start, engine);
  };
  setup.after_steps = [&](Engine& engine) { keep(trained.masters, engine); };
  const std::vector<RunResult> results = train_ranks(setup, world);
  for (const StepResult& step : results[0].steps) trained.losses.push_back(step.verdict.loss);
  return trained;
}

double median_change(const Trained& run) {
  std::vector<double> changes(run.masters.size());
  for (std::size_t i = 0; i < changes.size(); ++i) changes[i] = std::abs(run.masters[i] - run.start[i]);
  std::ranges::nth_element(changes, changes.begin() + static_cast<std::ptrdiff_t>(changes.size() / 2));
  return changes[changes.size() / 2];
}

// With f32 on the wire and no rounding of weights, only the order of f32 sums tells worlds apart: micro-batches of another
// size, and partial sums of ranks. The bounds come from a measurement of all stages and worlds over 50 steps and leave
// room for another compiler's or processor's order:
//   losses   differed by 5e-8 of their value at most; bound 1e-5 of it;
//   weights  differed by 1.6e-5 at most, 5e-7 in 99 % of all, median 5e-8. Adam divides a gradient by its own size,
//            so where that is nearly zero it makes a step of rounding, up to the learning rate each time: what
//            bounds the difference is learning rate times steps, of which 1.6e-5 is 1e-4; bound 1e-3 of it, for
//            every element. Half of all weights moved by more than 100 times that bound.
TEST(Ranks, AgreeWithOneRankOnTheSameGlobalBatch) {
  const int steps = testing::on_cuda() ? 10 : static_cast<int>(testing::fewer_if_sanitized(50, 5));
  const Trained alone = train_in_f32(0, 1, steps);
  const double bound = 1e-3 * tiny_run().config.optimizer.learning_rate * steps;
  EXPECT_LT(alone.losses.back(), alone.losses.front() - 0.3 * (steps > 10));
  EXPECT_GT(median_change(alone), 100 * bound);
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world : testing::kSanitized || testing::on_cuda() ? std::vector<int>{2} : std::vector<int>{1, 2, 3, 4}) {
      const Trained ranks = train_in_f32(stage, world, steps);
      SCOPED_TRACE(::testing::Message() << "stage " << stage << ", world " << world);
      ASSERT_EQ(ranks.masters.size(), alone.masters.size());
      for (std::size_t i = 0; i < alone.losses.size(); ++i) ASSERT_NEAR(ranks.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << "step " << i;
      for (std::size_t i = 0; i < alone.masters.size(); ++i) ASSERT_NEAR(ranks.masters[i], alone.masters[i], bound) << "element " << i;
    }
  }
}

// Stages 0 and 1 reduce once a step, 2 and 3 after every micro-batch; without accumulation there is no difference.
TEST(Ranks, StagesAreBitIdenticalWithoutAccumulation) {
  std::set<std::uint64_t> hashes;
  for (const int stage : {0, 1, 2, 3}) {
    RunSetup setup = run_of(stage, 3);
    setup.config.accumulation_steps = 1;
    hashes.insert(hash_of_ranks(setup, 3));
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST(Ranks, ShareStateInGroupsOrNotWithTheSameBits) {
  const ScratchFolder folder;
  for (const int stage : {1, 2, 3}) {
    std::set<std::uint64_t> hashes;
    for (const int group : {1, 2}) {
      for (const Place place : kPlaces) {
        RunSetup setup = run_of(stage, 4);
        setup.config.hpz_partition_size = group;
        put(setup, place, folder.path());
        hashes.insert(hash_of_ranks(setup, 4));
      }
    }
    EXPECT_EQ(hashes.size(), 1u) << "stage " << stage;
  }
}

// Replicas of the state agree with each other, and the placement changes nothing, whatever the state is made of.
TEST(Ranks, TrainByAnyOptimizerAndFormatOfMoments) {
  const ScratchFolder folder;
  std::vector<StateFormat> formats = {{OptimizerKind::adam, MomentFormat::block8}};
  if (!testing::on_cuda()) {
    formats.push_back({OptimizerKind::lion, MomentFormat::bf16});
    formats.push_back({OptimizerKind::adagrad, MomentFormat::f32});
  }
  for (const StateFormat& format : formats) {
    for (const auto& [stage, group] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{3, 1}}) {
      std::set<std::uint64_t> hashes;
      for (const Place place : {Place::none, Place::cpu, Place::nvme}) {
        RunSetup setup = run_of(stage, 4);
        setup.config.optimizer = testing::optimizer_of(format);
        setup.config.hpz_partition_size = group;
        setup.steps = 3;
        setup.after_steps = [](Engine& engine) { engine.compare_ranks(); };
        put(setup, place, folder.path());
        hashes.insert(hash_of_ranks(setup, 4));
      }
      EXPECT_EQ(hashes.size(), 1u) << text_of(format) << ", stage " << stage;
    }
  }
}

TEST(Ranks, DoNotDependOnTiming) {
  RunSetup setup = run_of(3, 3);
  setup.steps = 3;
  put(setup, Place::cpu, "");
  const std::uint64_t expected = hash_of_ranks(setup, 3);
  for (const std::uint64_t seed : {1, 2}) {
    setup.chaos_us = 200;
    setup.chaos_seed = seed;
    EXPECT_EQ(hash_of_ranks(setup, 3), expected);
  }
}

// A layer of few elements leaves ranks with nothing; one that is frozen leaves them nothing to do.
TEST(Ranks, TrainWithEmptyShardsAndFrozenParameters) {
  const ScratchFolder folder;
  std::set<std::uint64_t> hashes;
  for (const Place place : {Place::none, Place::cpu, Place::nvme}) {
    for (const int stage : {1, 3}) {
      RunSetup setup = run_of(stage, 3);
      setup.spec = {"odd", 2, 6, 2, 17, 8};
      setup.spec.mlp_channels = 5;
      setup.time = 8;
      setup.config.micro_batch_size = 2;
      setup.config.accumulation_steps = 1;
      setup.frozen = {"h.0.*", "wpe*", "h.1.ln_1.bias"};
      setup.config.spillway.tile_size = 2048;
      put(setup, place, folder.path());
      hashes.insert(hash_of_ranks(setup, 3));
    }
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST(Ranks, SendExactlyTheirShare) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world : testing::kSanitized ? std::vector<int>{2} : std::vector<int>{2, 4}) {
      RunSetup setup = run_of(stage, world);
      setup.config.max_reuse_distance = 0;
      setup.steps = 2;
      std::int64_t sent = 0, model = 0, head = 0;
      for (const RunResult& result : train_ranks(setup, world)) sent += result.sent_bytes;
      const Plan plan = testing::plan_of(setup);
      model = plan.num_parameters();
      head = plan.layers.back().num_elements;
      // Every byte of a unit goes from its one source to all others, or from all others to its one owner.
      const std::int64_t units = stage == 3 ? 2 * (2 * model - head) + 2 * model : stage == 2 ? 3 * model : 2 * model;
      EXPECT_EQ(sent, setup.steps * units * 2 * (world - 1)) << "stage " << stage << ", world " << world;
    }
  }
}

// communication_data_type: fp32 gradients of a bf16 model are twice the bytes, and less rounded.
TEST(Ranks, SendGradientsInTheTypeAskedFor) {
  RunSetup setup = run_of(2, 2);
  setup.steps = 2;
  const auto sent = [&](DType wire) {
    setup.config.communication_dtype = wire;
    const std::vector<RunResult> results = train_ranks(setup, 2);
    return results[0].sent_bytes + results[1].sent_bytes;
  };
  const std::int64_t model = testing::plan_of(setup).num_parameters();
  EXPECT_EQ(sent(DType::bf16), setup.steps * (2 + 2 * 2) * model);
  EXPECT_EQ(sent(DType::f32), setup.steps * (2 + 2 * 4) * model);
  std::set<std::uint64_t> hashes;
  const ScratchFolder folder;
  for (const Place place : {Place::none, Place::cpu, Place::nvme}) {
    put(setup, place, folder.path());
    hashes.insert(hash_of_ranks(setup, 2));
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST(Ranks, UseTheMemoryThatWasPlanned) {
  const ScratchFolder folder;
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world : testing::kSanitized || testing::on_cuda() ? std::vector<int>{2} : std::vector<int>{1, 2, 4}) {
      for (const Place place : {Place::none, Place::cpu, Place::nvme}) {
        RunSetup setup = run_of(stage, world);
        setup.steps = 2;
        put(setup, place, folder.path());
        for (const RunResult& result : train_ranks(setup, world)) {
          for (std::size_t t = 0; t < kTiers; ++t) {
            EXPECT_LE(result.peak[t], result.planned[t]);
            EXPECT_GE(result.peak[t], result.planned[t] * 98 / 100) << "stage " << stage << ", world " << world << ", " << name_of(static_cast<Tier>(t));
          }
        }
      }
    }
  }
}

// Targets that are missing on one rank only: the mean is over all that are there.
TEST(Ranks, AverageOverTheTargetsThereAre) {
  const auto loss_of = [](int world) {
    RunSetup setup = run_of(2, world);
    setup.config.dtype = setup.config.communication_dtype = DType::f32;
    setup.steps = 3;
    setup.before_step = [](Engine& engine, int) {
      if (engine.plan().request.rank != 0) return;
      for (std::size_t i = 0; i < 40; ++i) engine.targets(0)[i] = -1;
    };
    return train_ranks(setup, world)[0].steps.back().verdict;
  };
  const GateVerdict alone = loss_of(1), shared = loss_of(3);
  EXPECT_NEAR(shared.loss, alone.loss, 1e-5 * alone.loss);
  EXPECT_NEAR(shared.gradient_norm, alone.gradient_norm, 1e-4 * alone.gradient_norm);
}

TEST(Ranks, AllSkipTheStepInWhichOneOverflows) {
  RunSetup setup = run_of(3, 3);
  setup.config.dtype = setup.config.communication_dtype = DType::f16;
  setup.config.loss_scale.initial_scale_power = 40;
  setup.steps = 2;
  for (const RunResult& result : train_ranks(setup, 3)) {
    EXPECT_TRUE(result.steps[0].verdict.skip);
    EXPECT_EQ(result.steps[0].non_finite_tensor, "wte.weight");
  }
}

std::string error_of_ranks(const RunSetup& setup, int world, const std::function<void(RunSetup&)>& act) {
  try {
    for_each_rank(setup, world, act, 10.0);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Ranks, RefuseToStartWithDifferentPlans) {
  EXPECT_THAT(error_of_ranks(run_of(3, 3), 3,
                             [](RunSetup& mine) {
                               if (mine.world->rank() == 2) mine.config.allgather_bucket_size = 1000;
                               train(mine);
                             }),
              ::testing::AllOf(::testing::HasSubstr("compare the plans of 3 ranks"), ::testing::HasSubstr("rank 2 has")));
}

TEST(Ranks, NameTheRankThatFailsAndEnd) {
  const ScratchFolder folder;
  RunSetup setup = run_of(3, 3);
  setup.steps = 4;
  put(setup, Place::nvme, folder.path());
  std::array<std::string, 3> errors;
  EXPECT_NE(error_of_ranks(setup, 3,
                           [&](RunSetup& mine) {
                             const int rank = mine.world->rank();
                             mine.before_step = [rank](Engine& engine, int step) {
                               if (rank != 1 || step != 2) return;
                               engine.drain();  // or the write of the step before may put it right again
                               engine.store()->corrupt_for_test(engine.plan().tiles[0].state_extent, 0, 0);
                             };
                             try {
                               train(mine);
                             } catch (const Error& error) {
                               errors[static_cast<std::size_t>(rank)] = error.what();
                               throw;
                             }
                           }),
            "no error");
  EXPECT_THAT(errors[1], ::testing::HasSubstr("checksum"));
  for (const std::size_t other : {0, 2}) {
    EXPECT_THAT(errors[other], ::testing::AllOf(::testing::HasSubstr("rank 1 failed"), ::testing::HasSubstr("checksum"), ::testing::HasSubstr("step ")));
  }
}

TEST(Ranks, NoticeAWeightThatDiffers) {
  const std::string error = error_of_ranks(run_of(1, 3), 3, [](RunSetup& mine) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    engine->compare_ranks();
    if (mine.world->rank() == 1) engine->corrupt_for_test(2);
    engine->compare_ranks();
  });
  EXPECT_THAT(error, ::testing::AllOf(::testing::HasSubstr("weights of block 1 on rank 1"), ::testing::HasSubstr("resume")));
}

}  // namespace
}  // namespace spillway
