// Saved by four ranks, gone on with by any number, at any stage, in any place: the same state, and the same next steps.
#include <map>
#include <mutex>
#include <set>

#include <gtest/gtest.h>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "spillway/error.h"
#include "support/state_formats.h"
#include "support/training.h"

namespace spillway {
namespace {

using checkpoint::Reader;
using checkpoint::RunState;
using checkpoint::SaveResult;
using checkpoint::TensorInfo;
using checkpoint::Writer;
using testing::for_each_rank;
using testing::RunSetup;
using testing::ScratchFolder;

// Parameters of 1 to 17 elements, and some larger ones: many ranks have nothing of many layers.
RunSetup small_run(const StateFormat& format = {}) {
  RunSetup setup = testing::tiny_run();
  setup.config.optimizer = testing::optimizer_of(format);
  setup.spec = {"odd", 2, 6, 2, 17, 8};
  setup.spec.mlp_channels = 5;
  setup.time = 8;
  setup.config.spillway.tile_size = 2048;
  setup.config.accumulation_steps = 1;
  setup.frozen = {"h.0.mlp.c_fc.*", "ln_f.bias"};
  return setup;
}

void put(RunSetup& setup, int stage, OffloadDevice device, const std::string& folder) {
  setup.config.zero_stage = stage;
  setup.config.offload_optimizer = {device, {folder}, true, 1.0};
  setup.config.offload_param = {stage == 3 ? device : OffloadDevice::none, {folder}, true, 1.0};
}

std::vector<TensorInfo> tensors_of(const RunSetup& setup) {
  std::vector<TensorInfo> tensors;
  for (const auto& layer : make_layers(setup.spec, setup.frozen)) {
    for (const ParamSpec& param : layer->params()) tensors.push_back({param.name, param.shape, !param.trainable});
  }
  return tensors;
}

Writer make_writer(const RunSetup& setup, const std::string& root, Engine& engine) {
  std::unique_ptr<Communicator> communicator;
  static const std::unique_ptr<World> alone = make_self_world();
  communicator = (setup.world == nullptr ? *alone : *setup.world).communicator();
  return Writer({root, setup.spec, setup.config.dtype, setup.config.optimizer.state, tensors_of(setup), 0}, std::move(communicator),
                {engine.snapshot_items().begin(), engine.snapshot_items().end()}, engine.snapshot_memory());
}

RunState state_of(const Engine& engine, std::int64_t step) {
  const GateState gate = engine.gate_state();
  RunState run;
  run.step = step;
  run.applied_steps = gate.applied_steps;
  run.skipped_steps = gate.skipped_steps;
  run.loss_scaler = gate.scaler;
  return run;
}

// Steps [first, last) of the run that fill_batch() feeds.
void take_steps(Engine& engine, const RunSetup& setup, int first, int last) {
  for (int step = first; step < last; ++step) {
    fill_batch(engine, setup, step);
    engine.step();
  }
}

constexpr int kSavedAfter = 4, kGoneOnTo = 7;

struct Saved {
  std::string folder;
  std::uint64_t at_save = 0;
  std::uint64_t later = 0;  // had it gone on
};

// Saves while the next step runs, and goes on.
Saved save_by_four(const std::string& root, const std::string& swap, bool on_host = false, const StateFormat& format = {}) {
  RunSetup setup = small_run(format);
  setup.on_host = on_host;
  put(setup, 3, OffloadDevice::nvme, swap);
  setup.edit_request = [](PlanRequest& request) { request.snapshot_bytes = 1; };
  Saved saved;
  for_each_rank(setup, 4, [&](RunSetup& mine) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    Writer writer = make_writer(mine, root, *engine);
    take_steps(*engine, mine, 0, kSavedAfter);
    const std::uint64_t hash = engine->state_hash();
    writer.begin(state_of(*engine, kSavedAfter));
    engine->snapshot_in_next_step(writer);
    take_steps(*engine, mine, kSavedAfter, kGoneOnTo);
    const SaveResult result = writer.finish();
    if (!result.ok()) throw Error(result.error);
    const std::uint64_t later = engine->state_hash();
    if (mine.world->rank() == 0) saved = {result.folder, hash, later};
    if (result.state_hash != hash) throw Error("the saved state is not the one before the step that ran meanwhile");
  });
  return saved;
}

struct Resumed {
  std::uint64_t at_load = 0;
  std::uint64_t later = 0;
};

Resumed resume(const Saved& saved, int stage, OffloadDevice device, int world, const std::string& swap, bool on_host = false, const StateFormat& format = {}) {
  RunSetup setup = small_run(format);
  setup.on_host = on_host;
  put(setup, stage, device, swap);
  Resumed resumed;
  const auto act = [&](RunSetup& mine) {
    Reader reader(saved.folder);
    mine.source = &reader;
    const RunState& run = reader.manifest().run;
    mine.gate = GateState{run.loss_scaler, run.applied_steps, run.skipped_steps};
    const std::unique_ptr<Engine> engine = make_engine(mine);
    const std::uint64_t at_load = engine->state_hash();
    take_steps(*engine, mine, kSavedAfter, kGoneOnTo);
    const std::uint64_t later = engine->state_hash();
    if (mine.world == nullptr || mine.world->rank() == 0) resumed = {at_load, later};
  };
  if (world == 1) {
    act(setup);
  } else {
    for_each_rank(setup, world, act);
  }
  return resumed;
}

TEST(Resume, AnyWorldStageAndPlacementHasTheSavedState) {
  const ScratchFolder root, swap;
  const Saved saved = save_by_four(root.path(), swap.path());
  for (const int world : testing::kSanitized || testing::on_cuda() ? std::vector<int>{3} : std::vector<int>{1, 2, 3, 5, 8}) {
    for (const int stage : {0, 1, 2, 3}) {
      std::set<std::uint64_t> later;
      for (const OffloadDevice device : {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme}) {
        const Resumed resumed = resume(saved, stage, device, world, swap.path());
        EXPECT_EQ(resumed.at_load, saved.at_save) << "world " << world << ", stage " << stage;
        later.insert(resumed.later);
      }
      EXPECT_EQ(later.size(), 1u) << "world " << world << ", stage " << stage << ": the placement changed what followed";
    }
  }
}

// The lane that copies out may be slower than the steps that follow: they are not to take its sink away.
TEST(Resume, ASnapshotIsWholeHoweverLateItIsTaken) {
  const ScratchFolder root;
  RunSetup setup = testing::tiny_run();
  put(setup, 1, OffloadDevice::cpu, "");
  setup.edit_request = [](PlanRequest& request) { request.snapshot_bytes = 1 << 20; };
  setup.chaos_us = 300;
  for (setup.chaos_seed = 1; setup.chaos_seed <= testing::fewer_if_sanitized(5, 2); ++setup.chaos_seed) {
    const std::unique_ptr<Engine> engine = make_engine(setup);
    Writer writer = make_writer(setup, root.path(), *engine);
    for (int step = 0; step < 8; step += 2) {
      const std::uint64_t hash = engine->state_hash();
      writer.begin(state_of(*engine, step));
      engine->snapshot_in_next_step(writer);
      take_steps(*engine, setup, step, step + 2);
      const SaveResult result = writer.finish();
      EXPECT_TRUE(result.ok()) << result.error;
      EXPECT_EQ(result.state_hash, hash);
    }
  }
}

// Without accumulation all stages are bit-identical, and so are all their ways on.
TEST(Resume, TheSameWorldGoesOnAsIfNothingHadHappened) {
  const ScratchFolder root, swap;
  const Saved saved = save_by_four(root.path(), swap.path());
  for (const int stage : {0, 1, 2, 3}) {
    for (const OffloadDevice device : {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme}) {
      EXPECT_EQ(resume(saved, stage, device, 4, swap.path()).later, saved.later) << "stage " << stage;
    }
  }
}

// Moments of 8 bits too, whose blocks no number of ranks divides.
TEST(Resume, StatesOfOtherOptimizersAndFormatsAreTheSavedOnes) {
  for (const StateFormat& format : {StateFormat{OptimizerKind::adam, MomentFormat::block8}, StateFormat{OptimizerKind::lion, MomentFormat::bf16},
                                    StateFormat{OptimizerKind::sgd_momentum, MomentFormat::f32}}) {
    SCOPED_TRACE(text_of(format));
    const ScratchFolder root, swap;
    const Saved saved = save_by_four(root.path(), swap.path(), false, format);
    EXPECT_EQ(Reader(saved.folder).manifest().state, format);
    for (const int world : {1, 3, 4}) {
      for (const int stage : {0, 3}) {
        for (const OffloadDevice device : {OffloadDevice::none, OffloadDevice::nvme}) {
          const Resumed resumed = resume(saved, stage, device, world, swap.path(), false, format);
          EXPECT_EQ(resumed.at_load, saved.at_save) << "world " << world << ", stage " << stage;
          if (world == 4) {
            EXPECT_EQ(resumed.later, saved.later) << "stage " << stage;
          }
        }
      }
    }
  }
}

// What kind of device a checkpoint comes from is nothing it holds. (One kind, where CUDA devices are not under test.)
TEST(Resume, DevicesOfAllKindsShareCheckpoints) {
  for (const bool saved_on_host : {true, false}) {
    const ScratchFolder root, swap;
    const Saved saved = save_by_four(root.path(), swap.path(), saved_on_host);
    for (const int world : {1, 2}) {
      const Resumed resumed = resume(saved, 3, OffloadDevice::cpu, world, swap.path(), !saved_on_host);
      EXPECT_EQ(resumed.at_load, saved.at_save) << (saved_on_host ? "saved" : "gone on with") << " on the host device, world " << world;
      EXPECT_NE(resumed.later, resumed.at_load);
    }
  }
}

// Later unfreezing: what was frozen is trained from its weight on; what is frozen now is kept as its weight.
TEST(Resume, AnotherSetOfFrozenParametersStartsFromTheWeights) {
  const ScratchFolder root, swap;
  const Saved saved = save_by_four(root.path(), swap.path());
  RunSetup setup = small_run();
  setup.frozen = {"wpe.weight"};
  Reader reader(saved.folder);
  setup.source = &reader;
  const std::unique_ptr<Engine> engine = make_engine(setup);
  std::vector<float> saved_weight(30), loaded(30), moment(30);
  reader.read("h.0.mlp.c_fc.weight", StateSection::weight, 0, saved_weight);
  engine->read_tensor("h.0.mlp.c_fc.weight", StateSection::master, loaded);
  EXPECT_EQ(loaded, saved_weight);
  engine->read_tensor("h.0.mlp.c_fc.weight", StateSection::exp_avg, moment);
  EXPECT_EQ(moment, std::vector<float>(30, 0.0f));
  std::vector<float> positions(48), expected(48);
  reader.read("wpe.weight", StateSection::weight, 0, expected);
  engine->read_tensor("wpe.weight", StateSection::weight, positions);
  EXPECT_EQ(positions, expected);
}

}  // namespace
}  // namespace spillway
