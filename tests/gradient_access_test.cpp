// Gradients of single parameters by name, between backward and update: the same values wherever they are, and norm,
// clipping, verdict and update of those that were written.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/error.h"
#include "support/tensors.h"

namespace spillway {
namespace {

using namespace testing;

std::string param_in(const std::string& key) { return key.substr(key.find(' ') + 1); }

double square_sum(const Tensors& tensors) {
  double sum = 0.0;
  for (const auto& [name, values] : tensors) {
    for (const float value : values) sum += static_cast<double>(value) * value;
  }
  return sum;
}

class GradientAccessOf : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  static void everywhere(const std::function<void(RunSetup&, const std::string&)>& act) {
    const auto [stage, world] = GetParam();
    on_every_placement(stage, world, act);
  }
};

// Targets are missing on the first rank, so that the mean is not over all there could be.
TEST_P(GradientAccessOf, ReadsTheSameOnEveryRankAndTier) {
  Tensors expected;
  std::mutex mutex;
  everywhere([&](RunSetup& mine, const std::string& where) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    Tensors found;
    step(*engine, mine, 0);
    engine->before_update([&](GradientAccess& gradients) { found = read_all(gradients, mine); });
    fill_batch(*engine, mine, 1);
    if (engine->plan().request.rank == 0) std::fill_n(engine->targets(1).begin(), 9, -1);
    const double norm = engine->step().verdict.gradient_norm;
    EXPECT_NEAR(square_sum(found), norm * norm, 1e-6 * norm * norm) << where;
    const std::lock_guard lock(mutex);
    if (expected.empty()) expected = found;
    EXPECT_EQ(difference(found, expected), "") << where;
  });
  for (const auto& [name, values] : expected) {
    EXPECT_TRUE(std::ranges::any_of(values, [](float value) { return value != 0.0f; })) << name;
  }
}

TEST_P(GradientAccessOf, WritesWhatItReadWithoutATrace) {
  everywhere([&](RunSetup& mine, const std::string& where) {
    const std::unique_ptr<Engine> plain = make_engine(mine), edited = make_engine(mine);
    edited->before_update([&](GradientAccess& gradients) {
      const Tensors tensors = read_all(gradients, mine);
      for (const auto& [name, values] : tensors) gradients.write(param_in(name), values);
      EXPECT_EQ(difference(read_all(gradients, mine), tensors), "") << where;
    });
    const double norm = step(*plain, mine, 0).verdict.gradient_norm;
    EXPECT_EQ(step(*edited, mine, 0).verdict.gradient_norm, norm) << where;
    EXPECT_EQ(edited->state_hash(), plain->state_hash()) << where;
  });
}

// The norm is below the clipping threshold before, and above it after.
TEST_P(GradientAccessOf, ClipsWhatWasWritten) {
  everywhere([&](RunSetup& mine, const std::string& where) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    Tensors found;
    const ParamSpec param = param_of(mine, "h.1.mlp.c_fc.weight");
    engine->before_update([&](GradientAccess& gradients) {
      gradients.write(param.name, Values(static_cast<std::size_t>(param.num_elements), 0.5f));
      found = read_all(gradients, mine);
    });
    const GateVerdict verdict = step(*engine, mine, 0).verdict;
    EXPECT_GT(verdict.gradient_norm, 0.5 * std::sqrt(static_cast<double>(param.num_elements))) << where;
    EXPECT_NEAR(square_sum(found), verdict.gradient_norm * verdict.gradient_norm, 1e-6 * square_sum(found)) << where;
    // The first moment after a first step is what is left of the gradient, times 1 - beta1.
    const auto clip = static_cast<float>(1.0 / (verdict.gradient_norm + 1e-6));
    const float expected = static_cast<float>(1.0 - mine.config.optimizer.beta1) * (0.5f * clip);
    for (const float moment : read(*engine, param, StateSection::exp_avg)) ASSERT_EQ(moment, expected) << where;
  });
}

// With neither gradient nor moments, AdamW only decays.
TEST_P(GradientAccessOf, WrittenAsZeroesLeavesOnlyTheDecay) {
  const auto written = [](const std::string& name) { return name.ends_with("mlp.c_fc.weight") || name.ends_with("wte.weight"); };
  everywhere([&](RunSetup& mine, const std::string& where) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    const Tensors before = read_all(*engine, mine);
    engine->before_update([&](GradientAccess& gradients) {
      for (const ParamSpec& param : params_of(mine)) {
        if (written(param.name)) gradients.write(param.name, Values(static_cast<std::size_t>(param.num_elements), 0.0f));
      }
    });
    step(*engine, mine, 0);
    const auto decay = static_cast<float>(1.0 - mine.config.optimizer.learning_rate * mine.config.optimizer.weight_decay);
    for (const ParamSpec& param : params_of(mine)) {
      if (!param.trainable) continue;
      Values decayed = before.at(key(StateSection::master, param.name));
      for (float& value : decayed) value *= decay;
      EXPECT_EQ(same_bits(read(*engine, param, StateSection::master), decayed), written(param.name)) << param.name << ", " << where;
    }
    engine->compare_ranks();
  });
}

TEST_P(GradientAccessOf, WrittenAsNanSkipsTheStepAndIsNamed) {
  everywhere([&](RunSetup& mine, const std::string& where) {
    const std::unique_ptr<Engine> engine = make_engine(mine);
    const std::uint64_t hash = engine->state_hash();
    engine->before_update([](GradientAccess& gradients) {
      Values values(16);
      gradients.read("h.1.ln_2.bias", values);
      values[11] = std::numeric_limits<float>::quiet_NaN();
      gradients.write("h.1.ln_2.bias", values);
    });
    const StepResult skipped = step(*engine, mine, 0);
    EXPECT_TRUE(skipped.verdict.skip) << where;
    EXPECT_EQ(skipped.non_finite_tensor, "h.1.ln_2.bias") << where;
    EXPECT_EQ(engine->state_hash(), hash) << where;
    engine->before_update({});
    EXPECT_FALSE(step(*engine, mine, 1).verdict.skip) << where;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GradientAccessOf, ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(1, 3)),
                         [](const auto& info) { return "Stage" + std::to_string(std::get<0>(info.param)) + "World" + std::to_string(std::get<1>(info.param)); });

// Every replica updates with the whole shard's gradient, and counts only its slice.
TEST(Gradients, AreWrittenToEveryReplica) {
  for (const int stage : {0, 3}) {
    RunSetup setup = placed(tensor_run(stage), OffloadDevice::cpu, "");
    setup.config.hpz_partition_size = 2;
    on_ranks(setup, 4, [&](RunSetup& mine) {
      const std::unique_ptr<Engine> engine = make_engine(mine);
      double trained = 0.0;
      engine->before_update([&](GradientAccess& gradients) {
        for (const ParamSpec& param : params_of(mine)) {
          if (!param.trainable) continue;
          gradients.write(param.name, Values(static_cast<std::size_t>(param.num_elements), 0.5f));
          trained += static_cast<double>(param.num_elements);
        }
      });
      const double norm = step(*engine, mine, 0).verdict.gradient_norm;
      EXPECT_DOUBLE_EQ(norm, 0.5 * std::sqrt(trained));
      engine->compare_ranks();
    });
  }
}

// What f16 keeps of a gradient with a larger scale is nearer to it: the two differ by rounding, not by the scale.
TEST(Gradients, AreReadWithoutTheLossScale) {
  const auto gradients_at = [](int power) {
    RunSetup setup = tensor_run(1);
    setup.config.dtype = setup.config.communication_dtype = DType::f16;
    setup.config.loss_scale.initial_scale_power = power;
    const std::unique_ptr<Engine> engine = make_engine(setup);
    Tensors tensors;
    engine->before_update([&](GradientAccess& gradients) { tensors = read_all(gradients, setup); });
    EXPECT_EQ(step(*engine, setup, 0).verdict.loss_scale, std::ldexp(1.0, power));
    return tensors;
  };
  const Tensors low = gradients_at(8), high = gradients_at(12);
  for (const auto& [name, values] : low) {
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], high.at(name)[i], 1e-5 + 0.02 * std::abs(values[i])) << name << " " << i;
  }
}

// 16 * 2^12 is 2^16, more than f16 holds.
TEST(Gradients, OverflowWhenWrittenTooLargeForTheWire) {
  RunSetup setup = tensor_run(2);
  setup.config.dtype = setup.config.communication_dtype = DType::f16;
  setup.config.loss_scale.initial_scale_power = 12;
  const std::unique_ptr<Engine> engine = make_engine(setup);
  float value = 15.0f;
  engine->before_update([&](GradientAccess& gradients) { gradients.write("h.1.ln_1.bias", Values(16, value)); });
  EXPECT_FALSE(step(*engine, setup, 0).verdict.skip);
  value = 16.0f;
  const StepResult skipped = step(*engine, setup, 1);
  EXPECT_TRUE(skipped.verdict.skip);
  EXPECT_EQ(skipped.non_finite_tensor, "h.1.ln_1.bias");
}

TEST(Gradients, AreRefusedIfTheyAreNotThere) {
  for (const std::string name : {"h.0.ln_1.bias", "h.1.ln_1.bais"}) {
    const RunSetup setup = tensor_run(3);
    const std::unique_ptr<Engine> engine = make_engine(setup);
    engine->before_update([&](GradientAccess& gradients) {
      Values values(16);
      gradients.read(name, values);
    });
    try {
      step(*engine, setup, 0);
      FAIL() << name;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("read the gradient of \"" + name + "\""));
    }
  }
}

}  // namespace
}  // namespace spillway
