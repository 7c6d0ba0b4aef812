// Offload changes where, never what: every placement, tile size, thread count and timing gives the same bits.
#include <gtest/gtest.h>

#include "support/training.h"

namespace spillway {
namespace {

using testing::RunSetup;
using testing::ScratchFolder;
using testing::tiny_run;
using testing::train;

struct Variant {
  std::string name;
  std::function<void(RunSetup&, const std::string& folder)> change;
};

void optimizer_on(RunSetup& setup, OffloadDevice device, const std::string& folder) {
  setup.config.offload_optimizer.device = device;
  setup.config.offload_optimizer.nvme_paths = {folder};
}

void parameters_on(RunSetup& setup, OffloadDevice device, const std::string& folder) {
  setup.config.offload_param.device = device;
  setup.config.offload_param.nvme_paths = {folder};
}

void gradients_on_nvme(RunSetup& setup, OffloadDevice optimizer, const std::string& folder) {
  optimizer_on(setup, optimizer, folder);
  setup.config.spillway.offload_gradients = OffloadDevice::nvme;
  setup.config.spillway.nvme_paths = {folder};
}

// On a device without room for them.
void accumulators_on_nvme(RunSetup& setup, const std::string& folder) {
  parameters_on(setup, OffloadDevice::cpu, folder);
  gradients_on_nvme(setup, OffloadDevice::cpu, folder);
  setup.config.spillway.device_memory = testing::kept_workspace() + 420'000;
  setup.edit_plan = [](Plan& plan) { EXPECT_GE(plan.host_square_sums_buffer, 0); };
}

void activations_on_nvme(RunSetup& setup, const std::string& folder) {
  setup.config.offload_activations = OffloadDevice::nvme;
  setup.config.spillway.nvme_paths = {folder};
}

std::vector<Variant> placements() {
  return {
      {"optimizer on cpu", [](RunSetup& s, const std::string& f) { optimizer_on(s, OffloadDevice::cpu, f); }},
      {"optimizer on nvme", [](RunSetup& s, const std::string& f) { optimizer_on(s, OffloadDevice::nvme, f); }},
      {"parameters on cpu", [](RunSetup& s, const std::string& f) { parameters_on(s, OffloadDevice::cpu, f); }},
      {"parameters on nvme, optimizer on the device", [](RunSetup& s, const std::string& f) { parameters_on(s, OffloadDevice::nvme, f); }},
      {"parameters and optimizer on cpu",
       [](RunSetup& s, const std::string& f) {
         parameters_on(s, OffloadDevice::cpu, f);
         optimizer_on(s, OffloadDevice::cpu, f);
       }},
      {"parameters and optimizer on nvme",
       [](RunSetup& s, const std::string& f) {
         parameters_on(s, OffloadDevice::nvme, f);
         optimizer_on(s, OffloadDevice::nvme, f);
       }},
      {"half the optimizer on nvme, half the parameters on cpu",
       [](RunSetup& s, const std::string& f) {
         parameters_on(s, OffloadDevice::cpu, f);
         s.config.offload_param.ratio = 0.5;
         optimizer_on(s, OffloadDevice::nvme, f);
         s.config.offload_optimizer.ratio = 0.5;
       }},
      {"half the optimizer on cpu",
       [](RunSetup& s, const std::string& f) {
         optimizer_on(s, OffloadDevice::cpu, f);
         s.config.offload_optimizer.ratio = 0.5;
       }},
      {"mixed by budget",
       [](RunSetup& s, const std::string& f) {
         parameters_on(s, OffloadDevice::nvme, f);
         optimizer_on(s, OffloadDevice::nvme, f);
         s.config.spillway.placement = PlacementPolicy::fill;
         // A little less than what would hold everything, first of the device, then of the host.
         s.config.spillway.device_memory = testing::kept_workspace() + (testing::plan_of(s).tiers[0].peak - testing::kept_workspace()) * 6 / 10;
         s.config.spillway.host_memory = testing::plan_of(s).tiers[1].peak * 9 / 10;
         s.edit_plan = [](Plan& plan) {
           std::array<int, kTiers> tiles{};
           for (const TilePlan& tile : plan.tiles) ++tiles[static_cast<std::size_t>(tile.tier)];
           EXPECT_GT(tiles[1], 0);
           EXPECT_GT(tiles[2], 0);
         };
       }},
      {"activation checkpoints on the host", [](RunSetup& s, const std::string&) { s.config.offload_activations = OffloadDevice::cpu; }},
      {"activation checkpoints on nvme", activations_on_nvme},
      {"optimizer on cpu, gradients on nvme", [](RunSetup& s, const std::string& f) { gradients_on_nvme(s, OffloadDevice::cpu, f); }},
      {"everything on nvme",
       [](RunSetup& s, const std::string& f) {
         parameters_on(s, OffloadDevice::nvme, f);
         gradients_on_nvme(s, OffloadDevice::nvme, f);
         activations_on_nvme(s, f);
       }},
  };
}

std::vector<Variant> on_nvme(std::vector<Variant> changes) {
  for (Variant& variant : changes) {
    const auto change = variant.change;
    variant.change = [change](RunSetup& s, const std::string& f) {
      gradients_on_nvme(s, OffloadDevice::nvme, f);
      parameters_on(s, OffloadDevice::nvme, f);
      activations_on_nvme(s, f);
      change(s, f);
    };
  }
  return changes;
}

std::vector<Variant> ways_of_running() {
  return on_nvme({
      {"tiles of 4 Ki", [](RunSetup& s, const std::string&) { s.config.spillway.tile_size = 4 << 10; }},
      {"tiles of 1 Mi", [](RunSetup& s, const std::string&) { s.config.spillway.tile_size = 1 << 20; }},
      {"tiles of 4 Mi", [](RunSetup& s, const std::string&) { s.config.spillway.tile_size = 4 << 20; }},
      {"one thread", [](RunSetup& s, const std::string&) { s.config.spillway.threads = 1; }},
      {"two threads", [](RunSetup& s, const std::string&) { s.config.spillway.threads = 2; }},
      {"prefetch depth 1", [](RunSetup& s, const std::string&) { s.config.spillway.prefetch_depth = 1; }},
      {"prefetch depth 3", [](RunSetup& s, const std::string&) { s.config.spillway.prefetch_depth = 3; }},
      {"without verification", [](RunSetup& s, const std::string&) { s.config.spillway.verify = false; }},
      {"after a rehearsal", [](RunSetup& s, const std::string&) { s.rehearse = true; }},
      {"random delays, seed 1", [](RunSetup& s, const std::string&) { s.chaos_us = 300; }},
      {"random delays, seed 2",
       [](RunSetup& s, const std::string&) {
         s.chaos_us = 300;
         s.chaos_seed = 2;
       }},
  });
}

void expect_same_state(const RunSetup& base, const std::vector<Variant>& variants) {
  const testing::RunResult reference = train(base);
  EXPECT_LT(reference.steps.back().verdict.loss, reference.steps.front().verdict.loss * 0.97) << "nothing was learned";
  for (const Variant& variant : variants) {
    const ScratchFolder folder;
    RunSetup setup = base;
    variant.change(setup, folder.path());
    const testing::RunResult result = train(setup);
    EXPECT_EQ(result.state_hash, reference.state_hash) << variant.name;
    for (std::size_t i = 0; i < result.steps.size(); ++i) {
      ASSERT_EQ(result.steps[i].verdict.loss, reference.steps[i].verdict.loss) << variant.name << ", step " << i + 1;
    }
  }
}

TEST(Invariance, EveryPlacementGivesTheSameBitsInBf16) { expect_same_state(tiny_run(), placements()); }

TEST(Invariance, EveryPlacementGivesTheSameBitsInFp16) {
  RunSetup setup = tiny_run();
  setup.config.dtype = setup.config.communication_dtype = DType::f16;
  setup.config.loss_scale.initial_scale_power = 22;  // overflows at first: skipped steps are part of it
  setup.config.loss_scale.hysteresis = 1;
  setup.steps += 4;
  expect_same_state(setup, placements());
}

TEST(Invariance, EveryPlacementGivesTheSameBitsInFp32) {
  RunSetup setup = tiny_run();
  setup.config.dtype = setup.config.communication_dtype = DType::f32;
  expect_same_state(setup, placements());
}

TEST(Invariance, EveryPlacementGivesTheSameBitsUnderAccumulation) {
  RunSetup setup = tiny_run();
  // Simulated kernels take their time: the first micro-batch and the last are what differ.
  setup.config.accumulation_steps = testing::on_cuda() ? 2 : 4;
  setup.config.train_batch_size = 2 * setup.config.accumulation_steps;
  std::vector<Variant> variants = placements();
  // A device without room for the accumulators: they go to the host.
  variants.push_back({"accumulators on the host", [](RunSetup& s, const std::string& f) {
                        parameters_on(s, OffloadDevice::cpu, f);
                        optimizer_on(s, OffloadDevice::cpu, f);
                        s.config.spillway.device_memory = testing::kept_workspace() + 420'000;
                        s.edit_plan = [](Plan& plan) { EXPECT_GE(plan.host_square_sums_buffer, 0); };
                      }});
  // Tiles of a piece of the norm and a half: two of them are summed up at a time.
  for (const std::int64_t tile : {4096, 6144}) {
    variants.push_back({"accumulators on nvme, tiles of " + std::to_string(tile), [tile](RunSetup& s, const std::string& f) {
                          accumulators_on_nvme(s, f);
                          s.config.spillway.tile_size = tile;
                        }});
  }
  expect_same_state(setup, variants);
}

TEST(Invariance, EveryWayOfRunningGivesTheSameBits) { expect_same_state(tiny_run(), ways_of_running()); }

TEST(Invariance, ThePlansPeaksAreTheOnesMeasured) {
  std::vector<Variant> variants = placements();
  variants.push_back({"accumulators on nvme", [](RunSetup& s, const std::string& f) {
                        s.config.accumulation_steps = 2;
                        s.config.train_batch_size = 4;
                        accumulators_on_nvme(s, f);
                      }});
  for (const Variant& variant : variants) {
    const ScratchFolder folder;
    RunSetup setup = tiny_run();
    variant.change(setup, folder.path());
    const std::unique_ptr<Engine> engine = testing::make_engine(setup);
    testing::fill_batch(*engine, setup, 0);
    engine->step();
    engine->evaluate();
    engine->state_hash();
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      const std::int64_t planned = engine->plan().tiers[static_cast<std::size_t>(tier)].peak;
      EXPECT_EQ(engine->measured_peak(tier), planned) << variant.name << " on " << name_of(tier);
    }
  }
}

// Of every step, down to the padding: state, weights, gradients and activations.
TEST(Invariance, NvmeMovesThePlansBytes) {
  const ScratchFolder folder;
  RunSetup setup = tiny_run();
  setup.config.accumulation_steps = 2;
  setup.config.train_batch_size = 4;
  parameters_on(setup, OffloadDevice::nvme, folder.path());
  gradients_on_nvme(setup, OffloadDevice::nvme, folder.path());
  activations_on_nvme(setup, folder.path());
  const std::unique_ptr<Engine> engine = testing::make_engine(setup);
  SwapCounters planned;
  for (const Task& task : engine->plan().step.tasks) {
    if (is_nvme(task.lane)) (writes_nvme(task.kind) ? planned.write_bytes : planned.read_bytes) += task.bytes;
  }
  const SwapCounters before = engine->store()->counters();
  constexpr std::int64_t kSteps = 3;
  for (int step = 0; step < kSteps; ++step) {
    testing::fill_batch(*engine, setup, step);
    ASSERT_FALSE(engine->step().verdict.skip);
  }
  engine->drain();
  const SwapCounters after = engine->store()->counters();
  EXPECT_EQ(after.read_bytes - before.read_bytes, kSteps * planned.read_bytes);
  EXPECT_EQ(after.write_bytes - before.write_bytes, kSteps * planned.write_bytes);
}

// The same global batch in one micro-batch of 8 or four of 2, with gradients kept in fp32 on the wire: the
// gradient norm of the first step differs only by the order of fp32 additions.
TEST(Invariance, FourMicroBatchesOfTwoEqualOneOfEight) {
  for (const double clipping : {0.0, 0.5}) {
    RunSetup one = tiny_run();
    one.config.dtype = one.config.communication_dtype = DType::f32;
    one.config.gradient_clipping = clipping;
    one.config.micro_batch_size = one.config.train_batch_size = 8;
    one.steps = testing::on_cuda() ? 3 : 5;
    RunSetup four = one;
    four.config.micro_batch_size = 2;
    four.config.accumulation_steps = 4;
    const testing::RunResult a = train(one), b = train(four);
    for (std::size_t i = 0; i < a.steps.size(); ++i) {
      // 2^-24 per addition, a few hundred additions deep, after i updates whose direction m/sqrt(v) amplifies it.
      const double bound = 2e-6 * static_cast<double>(i + 1);
      EXPECT_NEAR(a.steps[i].verdict.loss, b.steps[i].verdict.loss, bound * a.steps[i].verdict.loss) << "step " << i + 1;
      EXPECT_NEAR(a.steps[i].verdict.gradient_norm, b.steps[i].verdict.gradient_norm, 20 * bound * a.steps[i].verdict.gradient_norm);
    }
  }
}

#if !defined(__SANITIZE_THREAD__)  // a data race on purpose; lost_dependency.cpp is its test there
// A plan that lost a dependency still runs, and under random delays gives other bits: the executor adds no
// ordering of its own that would hide the loss.
TEST(Invariance, ALostDependencyShowsUnderDelays) {
  const ScratchFolder folder;
  RunSetup setup = tiny_run();
  setup.steps = 6;
  optimizer_on(setup, OffloadDevice::nvme, folder.path());
  parameters_on(setup, OffloadDevice::cpu, folder.path());
  const std::uint64_t expected = train(setup).state_hash;
  int noticed = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    RunSetup broken = setup;
    broken.chaos_us = 2000;
    broken.chaos_seed = seed;
    // Gathers no longer wait for the optimizer of the step before.
    broken.edit_plan = [](Plan& plan) {
      for (Task& task : plan.step.tasks) {
        if (task.kind == TaskKind::gather) std::erase_if(task.dependencies, [](const Dependency& d) { return d.previous_run; });
      }
    };
    if (train(broken).state_hash != expected) ++noticed;
  }
  EXPECT_GT(noticed, 0);
}
#endif

}  // namespace
}  // namespace spillway
