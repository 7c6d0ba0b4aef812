// Training by every optimizer, with moments in every format: placement, tiles and the place of the update change nothing.
#include <algorithm>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/gradient_access.h"
#include "spillway/error.h"
#include "support/state_formats.h"
#include "support/tensors.h"

namespace spillway {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Layers of several tiles, which end within a block of 256; a part is frozen.
RunSetup run_of(const StateFormat& format) {
  RunSetup setup = tensor_run(3);
  setup.config.optimizer = optimizer_of(format);
  setup.steps = on_cuda() ? 3 : 5;
  return setup;
}

struct Place {
  const char* name;
  OffloadDevice optimizer, parameters;
  std::int64_t tile_size;
  double ratio;
};

constexpr Place kPlaces[] = {
    {"updated on the device", OffloadDevice::none, OffloadDevice::none, 2048, 1.0},
    {"state on the host", OffloadDevice::cpu, OffloadDevice::none, 2048, 1.0},
    {"everything on the host, in one tile", OffloadDevice::cpu, OffloadDevice::cpu, 1 << 20, 1.0},
    {"everything on NVMe", OffloadDevice::nvme, OffloadDevice::nvme, 2048, 1.0},
    {"half of the state on NVMe, the other on the host", OffloadDevice::nvme, OffloadDevice::cpu, 4096, 0.5},
};

RunSetup put(RunSetup setup, const Place& place, const std::string& folder) {
  setup.config.offload_optimizer = {place.optimizer, {folder}, true, place.ratio};
  setup.config.offload_param = {place.parameters, {folder}, true, 1.0};
  setup.config.spillway.tile_size = place.tile_size;
  return setup;
}

class OptimizerTraining : public ::testing::TestWithParam<StateFormat> {
 protected:
  const ScratchFolder folder_;
};

TEST_P(OptimizerTraining, IsBitIdenticalForEveryPlacement) {
  std::set<std::uint64_t> hashes;
  for (const Place& place : kPlaces) {
    const RunResult result = train(put(run_of(GetParam()), place, folder_.path()));
    EXPECT_LT(result.steps.back().verdict.loss, result.steps.front().verdict.loss) << "nothing was learned, " << place.name;
    hashes.insert(result.state_hash);
    EXPECT_EQ(hashes.size(), 1u) << place.name;
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      const auto t = static_cast<std::size_t>(tier);
      EXPECT_EQ(result.peak[t], result.planned[t]) << place.name << " on " << name_of(tier);
    }
  }
}

// One infinity in one gradient of one step.
TEST_P(OptimizerTraining, IsLeftUntouchedByAStepThatOverflows) {
  for (const Place& place : kPlaces) {
    const RunSetup setup = put(run_of(GetParam()), place, folder_.path());
    const std::unique_ptr<Engine> engine = make_engine(setup);
    step(*engine, setup, 0);
    const std::uint64_t hash = engine->state_hash();
    engine->before_update([&](GradientAccess& gradients) {
      const ParamSpec param = param_of(setup, "h.1.mlp.c_fc.bias");
      Values values(static_cast<std::size_t>(param.num_elements));
      gradients.read(param.name, values);
      values[5] = std::numeric_limits<float>::infinity();
      gradients.write(param.name, values);
    });
    const StepResult result = step(*engine, setup, 1);
    EXPECT_TRUE(result.verdict.skip) << place.name;
    EXPECT_EQ(result.non_finite_tensor, "h.1.mlp.c_fc.bias");
    EXPECT_EQ(engine->state_hash(), hash) << place.name;
    EXPECT_EQ(engine->applied_steps(), 1);
    engine->before_update({});
    EXPECT_FALSE(step(*engine, setup, 2).verdict.skip);
    EXPECT_NE(engine->state_hash(), hash);
  }
}

// What is read is exactly what is kept, so writing it back changes nothing; and what is kept is all that decides the next step.
TEST_P(OptimizerTraining, KeepsWhatIsReadAndWrittenByName) {
  for (const Place& place : {kPlaces[0], kPlaces[3]}) {
    const RunSetup setup = put(run_of(GetParam()), place, folder_.path());
    const std::unique_ptr<Engine> engine = make_engine(setup);
    for (int s = 0; s < 2; ++s) step(*engine, setup, s);
    const std::uint64_t hash = engine->state_hash();
    const Tensors before = read_all(*engine, setup);
    const auto sections = sections_of(GetParam().kind, false);
    for (const ParamSpec& param : params_of(setup)) {
      if (!param.trainable) continue;
      for (const StateSection section : sections) {
        const Values& values = before.at(key(section, param.name));
        EXPECT_TRUE(std::ranges::any_of(values, [](float value) { return value != 0.0f; })) << key(section, param.name);
        engine->write_tensor(param.name, section, values);
      }
    }
    EXPECT_EQ(engine->state_hash(), hash) << place.name;
    for (const StateSection section : sections.subspan(1)) {
      engine->write_tensor("h.1.mlp.c_fc.bias", section, Values(64, 0.0f));
      EXPECT_EQ(read(*engine, param_of(setup, "h.1.mlp.c_fc.bias"), section), Values(64, 0.0f));
    }
  }
}

TEST_P(OptimizerTraining, NamesTheSectionsThereAre) {
  const std::unique_ptr<Engine> engine = make_engine(run_of(GetParam()));
  Values values(64);
  std::string kept;
  for (const StateSection section : sections_of(GetParam().kind, false)) kept += std::string(kept.empty() ? "" : ", ") + std::string(name_of(section));
  for (const StateSection section : {StateSection::exp_avg, StateSection::exp_avg_sq, StateSection::sum, StateSection::momentum_buffer}) {
    std::string error = "no error";
    try {
      engine->read_tensor("h.1.mlp.c_fc.bias", section, values);
    } catch (const ConfigError& refused) {
      error = refused.what();
    }
    if (moment_of(GetParam().kind, section) >= 0) {
      EXPECT_EQ(error, "no error");
    } else {
      EXPECT_THAT(error, AllOf(HasSubstr("read the " + std::string(name_of(section)) + " of \"h.1.mlp.c_fc.bias\""),
                               HasSubstr(std::string(traits_of(GetParam().kind).name) + ", has none"), HasSubstr("has " + kept + " and weight")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(States, OptimizerTraining, ::testing::ValuesIn(all_state_formats()), [](const auto& info) {
  return std::string(traits_of(info.param.kind).name) + "_" + std::string(name_of(info.param.moments));
});

// They are really different ones.
TEST(OptimizerStates, AreDifferentForEveryFormat) {
  std::set<std::uint64_t> hashes;
  const std::vector<StateFormat> formats = all_state_formats();
  for (const StateFormat& format : formats) hashes.insert(train(run_of(format)).state_hash);
  EXPECT_EQ(hashes.size(), formats.size());
}

// The table of sections has the moments of the table of optimizers.
TEST(StateSections, AreTheMomentsOfTheOptimizer) {
  for (const StateFormat& format : all_state_formats()) {
    const auto sections = sections_of(format.kind, false);
    ASSERT_EQ(static_cast<int>(sections.size()), 1 + format.num_moments());
    EXPECT_EQ(sections[0], StateSection::master);
    for (int m = 0; m < format.num_moments(); ++m) {
      const auto section = sections[static_cast<std::size_t>(m) + 1];
      EXPECT_EQ(name_of(section), traits_of(format.kind).moments[static_cast<std::size_t>(m)].name);
      EXPECT_EQ(moment_of(format.kind, section), m);
    }
  }
}

}  // namespace
}  // namespace spillway
