// Single tensors by name: the same values wherever they live, and a run that goes on as if it had always had those written.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/gradient_access.h"
#include "runtime/state_access.h"
#include "spillway/error.h"
#include "support/training.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::fill_batch;
using testing::make_engine;
using testing::RunSetup;
using testing::ScratchFolder;

using Values = std::vector<float>;
using Tensors = std::map<std::string, Values>;  // by section and name

constexpr std::array kSections = {StateSection::master, StateSection::exp_avg, StateSection::exp_avg_sq, StateSection::weight};

// One layer is partly frozen; two micro-batches; tiles smaller than a layer's shard.
RunSetup run_of(int stage) {
  RunSetup setup = testing::tiny_run();
  setup.spec = {"tiny", 2, 16, 2, 48, 16};
  setup.time = 16;
  setup.config.zero_stage = stage;
  setup.config.accumulation_steps = 2;
  setup.config.spillway.tile_size = 2048;
  setup.frozen = {"h.0.ln_1.*", "h.0.mlp.c_proj.weight"};
  return setup;
}

RunSetup placed(RunSetup setup, OffloadDevice device, const std::string& folder) {
  setup.config.offload_optimizer = {device, folder, true, 1.0};
  if (setup.config.zero_stage == 3) setup.config.offload_param = {device, folder, true, 1.0};
  return setup;
}

constexpr std::array kDevices = {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme};

void on_ranks(const RunSetup& setup, int world, const std::function<void(RunSetup&)>& act) {
  RunSetup alone = setup;
  world == 1 ? act(alone) : testing::for_each_rank(setup, world, act, 30.0);
}

int rank_of(const Engine& engine) { return engine.plan().request.rank; }

std::vector<ParamSpec> params_of(const RunSetup& setup) {
  std::vector<ParamSpec> params;
  for (const auto& layer : make_layers(setup.spec, setup.frozen)) params.insert(params.end(), layer->params().begin(), layer->params().end());
  return params;
}

Values read(Engine& engine, const ParamSpec& param, StateSection section) {
  Values values(static_cast<std::size_t>(param.num_elements), -77.0f);
  engine.read_tensor(param.name, section, values);
  return values;
}

Tensors read_all(Engine& engine, const RunSetup& setup) {
  Tensors tensors;
  for (const ParamSpec& param : params_of(setup)) {
    for (const StateSection section : kSections) {
      if (param.trainable || section == StateSection::weight) tensors[std::string(name_of(section)) + " " + param.name] = read(engine, param, section);
    }
  }
  return tensors;
}

Tensors read_all(GradientAccess& gradients, const RunSetup& setup) {
  Tensors tensors;
  for (const ParamSpec& param : params_of(setup)) {
    if (!param.trainable) continue;
    Values& values = tensors["gradient " + param.name];
    values.resize(static_cast<std::size_t>(param.num_elements));
    gradients.read(param.name, values);
  }
  return tensors;
}

Values values_like(const ParamSpec& param, float offset) {
  Values values(static_cast<std::size_t>(param.num_elements));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = offset + 0.01f * std::sin(static_cast<float>(i) + offset);
  return values;
}

// Bits, not values: zeros have signs.
bool same_bits(const Values& a, const Values& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0; }

void expect_same(const Tensors& found, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, values] : expected) EXPECT_TRUE(same_bits(found.at(name), values)) << name << ", " << what;
}

StepResult step(Engine& engine, const RunSetup& setup, int number) {
  fill_batch(engine, setup, number);
  return engine.step();
}

class Access : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  // Acts on every rank of every placement.
  void everywhere(const std::function<void(RunSetup&, const std::string& what)>& act) const {
    const auto [stage, world] = GetParam();
    const ScratchFolder folder;
    for (const OffloadDevice device : kDevices) {
      on_ranks(placed(run_of(stage), device, folder.path()), world, [&](RunSetup& mine) {
        act(mine, "device " + std::to_string(static_cast<int>(device)) + ", rank " + std::to_string(mine.world == nullptr ? 0 : mine.world->rank()));
      });
    }
  }
};

// Targets are missing on the first rank, so that the mean is not over all there could be.
TEST_P(Access, ReadsTheSameOnEveryRankAndTier) {
  Tensors expected;
  std::mutex mutex;
  everywhere([&](RunSetup& mine, const std::string& what) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    Tensors gradients;
    step(*engine, mine, 0);
    engine->before_update([&](GradientAccess& access) { gradients = read_all(access, mine); });
    fill_batch(*engine, mine, 1);
    if (rank_of(*engine) == 0) std::fill_n(engine->targets(1).begin(), 9, -1);
    const double norm = engine->step().verdict.gradient_norm;
    double square_sum = 0.0;
    for (const auto& [name, values] : gradients) {
      for (const float value : values) square_sum += static_cast<double>(value) * value;
    }
    EXPECT_NEAR(square_sum, norm * norm, 1e-6 * norm * norm) << what;
    Tensors found = read_all(*engine, mine);
    for (const ParamSpec& param : params_of(mine)) {
      if (!param.trainable) continue;
      Values rounded = found.at("master " + param.name);
      for (float& value : rounded) value = round_to<bf16>(value);
      EXPECT_TRUE(same_bits(found.at("weight " + param.name), rounded)) << param.name << ", " << what;
    }
    found.merge(gradients);
    const std::lock_guard lock(mutex);
    if (expected.empty()) expected = found;
    expect_same(found, expected, what);
  });
  for (const auto& [name, values] : expected) {
    EXPECT_TRUE(!name.starts_with("gradient") || std::ranges::any_of(values, [](float value) { return value != 0.0f; })) << name;
  }
}

TEST_P(Access, ReadsWhatWasWrittenAndComesBack) {
  everywhere([&](RunSetup& mine, const std::string& what) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    step(*engine, mine, 0);
    const Tensors before = read_all(*engine, mine);
    const std::uint64_t hash = engine->state_hash();
    float offset = 1.0f;
    for (const ParamSpec& param : params_of(mine)) {
      for (const StateSection section : kSections) {
        if (!param.trainable && section != StateSection::weight) continue;
        const Values values = values_like(param, offset++);
        engine->write_tensor(param.name, section, values);
        if (section == StateSection::weight) {
          Values rounded = values;
          for (float& value : rounded) value = round_to<bf16>(value);
          EXPECT_TRUE(same_bits(read(*engine, param, section), rounded)) << param.name << ", " << what;
        }
        if (!param.trainable) continue;
        const StateSection kept = section == StateSection::weight ? StateSection::master : section;
        EXPECT_TRUE(same_bits(read(*engine, param, kept), values)) << name_of(section) << " " << param.name << ", " << what;
      }
    }
    engine->compare_ranks();
    EXPECT_NE(engine->state_hash(), hash);
    for (const ParamSpec& param : params_of(mine)) {
      for (const StateSection section : kSections) {
        const auto old = before.find(std::string(name_of(section)) + " " + param.name);
        if (old != before.end() && !(param.trainable && section == StateSection::weight)) engine->write_tensor(param.name, section, old->second);
      }
    }
    EXPECT_EQ(engine->state_hash(), hash) << what;
    expect_same(read_all(*engine, mine), before, what);
    engine->compare_ranks();
  });
}

// The seed's values, but for tensors that are given. The weight of what has a master is that.
class EditedSource final : public StateSource {
 public:
  EditedSource(const RunSetup& setup, Tensors edited) : layers_(make_layers(setup.spec, setup.frozen)), seeded_(layers_, testing::kSeed), edited_(std::move(edited)) {}

  void read(const std::string& param, StateSection section, std::int64_t begin, std::span<float> out) override {
    auto it = edited_.find(std::string(name_of(section)) + " " + param);
    if (section == StateSection::weight && it == edited_.end()) it = edited_.find("master " + param);
    if (it == edited_.end()) return seeded_.read(param, section, begin, out);
    std::copy_n(it->second.begin() + begin, out.size(), out.begin());
  }

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
  SeedSource seeded_;
  Tensors edited_;
};

// The tied table, a frozen weight, a matrix by its master and by its weight, and moments.
TEST_P(Access, TrainsAsARunThatStartedWithWhatIsWritten) {
  everywhere([&](RunSetup& mine, const std::string& what) {
    Tensors edited;
    const std::unique_ptr<Engine> engine = make_engine(mine);
    const auto edit = [&](const std::string& name, StateSection section, StateSection kept, float offset) {
      for (const ParamSpec& param : params_of(mine)) {
        if (param.name != name) continue;
        edited[std::string(name_of(kept)) + " " + name] = values_like(param, offset);
        engine->write_tensor(name, section, values_like(param, offset));
      }
    };
    edit("wte.weight", StateSection::master, StateSection::master, 0.02f);
    edit("h.0.mlp.c_proj.weight", StateSection::weight, StateSection::weight, 0.03f);
    edit("h.1.attn.c_attn.weight", StateSection::weight, StateSection::master, 0.01f);
    edit("h.1.mlp.c_fc.bias", StateSection::master, StateSection::master, 0.04f);
    edit("h.1.mlp.c_fc.bias", StateSection::exp_avg, StateSection::exp_avg, 0.05f);
    edit("h.1.mlp.c_fc.bias", StateSection::exp_avg_sq, StateSection::exp_avg_sq, 0.06f);
    ASSERT_EQ(edited.size(), 6u);
    EditedSource source(mine, edited);
    RunSetup started = mine;
    started.source = &source;
    const std::unique_ptr<Engine> other = make_engine(started);
    for (int s = 0; s < 2; ++s) {
      const StepResult here = step(*engine, mine, s), there = step(*other, started, s);
      EXPECT_EQ(here.verdict.loss, there.verdict.loss) << what;
      EXPECT_EQ(here.verdict.gradient_norm, there.verdict.gradient_norm) << what;
    }
    EXPECT_EQ(engine->state_hash(), other->state_hash()) << what;
  });
}

TEST_P(Access, GradientsThatAreWrittenAreThoseOfTheUpdate) {
  everywhere([&](RunSetup& mine, const std::string& what) {
    const std::unique_ptr<Engine> plain = make_engine(mine), same = make_engine(mine), zeroed = make_engine(mine);
    const double norm = step(*plain, mine, 0).verdict.gradient_norm;
    same->before_update([&](GradientAccess& gradients) {
      Tensors tensors = read_all(gradients, mine);
      for (const auto& [name, values] : tensors) gradients.write(name.substr(9), values);
      expect_same(read_all(gradients, mine), tensors, what);
    });
    EXPECT_EQ(step(*same, mine, 0).verdict.gradient_norm, norm) << "same bits, same norm; " << what;
    EXPECT_EQ(same->state_hash(), plain->state_hash()) << what;

    // With no gradient and no moments, AdamW only decays.
    double left = 0.0;
    Tensors before = read_all(*zeroed, mine);
    zeroed->before_update([&](GradientAccess& gradients) {
      for (const auto& [name, values] : read_all(gradients, mine)) {
        if (!name.ends_with("mlp.c_fc.weight") && !name.ends_with("wte.weight")) {
          for (const float value : values) left += static_cast<double>(value) * value;
          continue;
        }
        gradients.write(name.substr(9), Values(values.size(), 0.0f));
      }
    });
    const double left_norm = step(*zeroed, mine, 0).verdict.gradient_norm;
    EXPECT_NEAR(left_norm, std::sqrt(left), 1e-6 * norm) << what;
    const Tensors after = read_all(*zeroed, mine);
    const auto decay = static_cast<float>(1.0 - mine.config.optimizer.learning_rate * mine.config.optimizer.weight_decay);
    for (auto& [name, values] : before) {
      const bool edited = name.ends_with("mlp.c_fc.weight") || name.ends_with("wte.weight");
      if (!name.starts_with("master")) continue;
      if (edited) {
        for (float& value : values) value *= decay;
      }
      EXPECT_EQ(same_bits(after.at(name), values), edited) << name << ", " << what;
    }
    zeroed->compare_ranks();
  });
}

TEST_P(Access, AGradientWrittenAsNanSkipsTheStepAndIsNamed) {
  everywhere([&](RunSetup& mine, const std::string& what) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    const std::uint64_t hash = engine->state_hash();
    engine->before_update([](GradientAccess& gradients) {
      Values values(16);
      gradients.read("h.1.ln_2.bias", values);
      values[11] = std::numeric_limits<float>::quiet_NaN();
      gradients.write("h.1.ln_2.bias", values);
    });
    const StepResult skipped = step(*engine, mine, 0);
    EXPECT_TRUE(skipped.verdict.skip) << what;
    EXPECT_EQ(skipped.non_finite_tensor, "h.1.ln_2.bias") << what;
    EXPECT_EQ(engine->state_hash(), hash) << what;
    engine->before_update({});
    EXPECT_FALSE(step(*engine, mine, 1).verdict.skip) << what;
  });
}

INSTANTIATE_TEST_SUITE_P(Tensors, Access, ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(1, 3)),
                         [](const auto& info) { return "Stage" + std::to_string(std::get<0>(info.param)) + "World" + std::to_string(std::get<1>(info.param)); });

// Groups of two that share a layer, each of them the other's replica.
TEST(TensorAccess, WritesEveryReplica) {
  for (const OffloadDevice device : {OffloadDevice::none, OffloadDevice::cpu}) {
    RunSetup setup = placed(run_of(3), device, "");
    setup.config.hpz_partition_size = 2;
    on_ranks(setup, 4, [&](RunSetup& mine) {
      const std::unique_ptr<Engine> engine = make_engine(mine), plain = make_engine(mine);
      for (const ParamSpec& param : params_of(mine)) engine->write_tensor(param.name, StateSection::weight, values_like(param, 0.01f));
      engine->compare_ranks();
      for (const ParamSpec& param : params_of(mine)) EXPECT_EQ(read(*engine, param, StateSection::weight)[0], round_to<bf16>(values_like(param, 0.01f)[0]));
      plain->before_update([&](GradientAccess& gradients) {
        for (const auto& [name, values] : read_all(gradients, mine)) gradients.write(name.substr(9), Values(values.size(), 0.5f));
      });
      const std::int64_t trained = std::accumulate(plain->plan().layers.begin(), plain->plan().layers.end(), std::int64_t{0},
                                                   [](std::int64_t sum, const LayerPlan& layer) { return sum + layer.num_trainable; });
      EXPECT_DOUBLE_EQ(step(*plain, mine, 0).verdict.gradient_norm, 0.5 * std::sqrt(static_cast<double>(trained)));
      plain->compare_ranks();
    });
  }
}

TEST(TensorAccess, SharesTensorsSmallerThanTheWorld) {
  for (const int stage : {1, 3}) {
    RunSetup setup = run_of(stage);
    setup.spec = {"odd", 1, 2, 1, 7, 8};
    setup.spec.mlp_channels = 3;
    setup.time = 8;
    setup.frozen = {"h.0.ln_2.weight"};
    on_ranks(setup, 3, [&](RunSetup& mine) {
      const std::unique_ptr<Engine> engine = make_engine(mine);
      for (const ParamSpec& param : params_of(mine)) {
        const StateSection section = param.trainable ? StateSection::master : StateSection::weight;
        const Values values = param.trainable ? values_like(param, 3.0f) : Values(2, 0.25f);
        engine->write_tensor(param.name, section, values);
        EXPECT_TRUE(same_bits(read(*engine, param, section), values)) << param.name;
      }
      engine->compare_ranks();
    });
  }
}

// Loss scales are powers of two: gradients that are normal numbers differ by exactly that.
TEST(TensorAccess, ReadsGradientsWithoutTheLossScale) {
  const auto gradients_at = [](int power) {
    RunSetup setup = run_of(1);
    setup.config.dtype = setup.config.communication_dtype = DType::f16;
    setup.config.loss_scale.initial_scale_power = power;
    const std::unique_ptr<Engine> engine = make_engine(setup);
    Tensors tensors;
    engine->before_update([&](GradientAccess& gradients) { tensors = read_all(gradients, setup); });
    EXPECT_EQ(step(*engine, setup, 0).verdict.loss_scale, std::ldexp(1.0, power));
    return tensors;
  };
  const Tensors low = gradients_at(10), high = gradients_at(14);
  for (const auto& [name, values] : low) {
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], high.at(name)[i], 1e-5 + 4e-3 * std::abs(values[i])) << name << " " << i;
  }
}

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(TensorAccess, RefusesWhatIsNotThere) {
  const RunSetup setup = run_of(3);
  const std::unique_ptr<Engine> engine = make_engine(setup);
  const std::uint64_t hash = engine->state_hash();
  Values values(16);
  EXPECT_THAT(error_of([&] { engine->read_tensor("h.1.ln_1.wieght", StateSection::master, values); }),
              AllOf(HasSubstr("read the master of \"h.1.ln_1.wieght\""), HasSubstr("did you mean \"h.1.ln_1.weight\"?")));
  EXPECT_THAT(error_of([&] { engine->write_tensor("wpe.weight", StateSection::exp_avg, values); }),
              AllOf(HasSubstr("write the exp_avg of \"wpe.weight\""), HasSubstr("found 16 values, expected 256"), HasSubstr("(16, 16)")));
  EXPECT_THAT(error_of([&] { engine->read_tensor("h.0.ln_1.bias", StateSection::master, values); }), HasSubstr("frozen, it has only a weight"));
  EXPECT_EQ(engine->state_hash(), hash);
  engine->before_update([&](GradientAccess& gradients) { gradients.read("h.0.ln_1.bias", values); });
  EXPECT_THAT(error_of([&] { step(*engine, setup, 0); }), AllOf(HasSubstr("read the gradient of"), HasSubstr("frozen")));
}

TEST(TensorAccess, RefusesRanksThatWriteDifferentValues) {
  EXPECT_THAT(error_of([] {
                on_ranks(run_of(1), 3, [](RunSetup& mine) {
                  const std::unique_ptr<Engine> engine = make_engine(mine);
                  Values values(16, rank_of(*engine) == 2 ? 1.0f : 2.0f);
                  engine->write_tensor("h.1.ln_1.weight", StateSection::master, values);
                });
              }),
              AllOf(HasSubstr("write the master of \"h.1.ln_1.weight\" on rank 0: rank 2"), HasSubstr("the same values")));
}

}  // namespace
}  // namespace spillway
