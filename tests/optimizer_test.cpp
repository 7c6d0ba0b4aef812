// The optimizers as a caller has them: statistics, the split master, threads, and the choice of the instruction set.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/parallel.h"
#include "spillway/error.h"
#include "spillway/optimizer.h"
#include "support/optimizer_arrays.h"

namespace spillway {
namespace {

using test::OptimizerArrays;
using test::OptimizerVariant;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The order stated in the header.
double stated_square_sum(const OptimizerArrays& arrays) {
  double sums[16] = {};
  for (std::int64_t i = 0; i < arrays.n; ++i) {
    const double g = static_cast<double>(arrays.gradient_at(i));
    sums[i % 16] += g * g;
  }
  for (const int apart : {8, 4, 2, 1}) {
    for (int i = 0; i < apart; ++i) sums[i] += sums[i + apart];
  }
  return sums[0];
}

class OptimizerStatistics : public testing::TestWithParam<std::string_view> {};

TEST_P(OptimizerStatistics, AreTheStatedSumAndChangeNothingElse) {
  for (const DType gradient : {DType::f32, DType::bf16, DType::f16}) {
    for (const MomentFormat format : {MomentFormat::f32, MomentFormat::bf16, MomentFormat::block8}) {
      for (const std::int64_t n : {0, 1, 15, 16, 17, 255, 256, 257, 4099}) {
        OptimizerArrays arrays({OptimizerKind::adam, format, gradient, std::nullopt, false}, n, 3);
        arrays.fill_state(1);
        test::fill_wild_gradient(arrays, 2, false);
        OptimizerArrays without = arrays;
        const OptimizerParams p = test::lively_params(OptimizerKind::adam, 2);
        GradientStatistics statistics{-1};
        OptimizerTile tile = arrays.tile();
        tile.statistics = &statistics;
        // From 7 before a multiple of 2^32: a cut inside of the call is not one of the sum.
        if (format != MomentFormat::block8) tile.position = (std::uint64_t{1} << 32) - 7;
        OptimizerTile same = without.tile();
        same.position = tile.position;
        optimizer_update_with(GetParam(), tile, p);
        optimizer_update_with(GetParam(), same, p);
        EXPECT_EQ(statistics.square_sum, stated_square_sum(arrays)) << arrays.variant.name() << " n " << n;
        EXPECT_EQ(gradient_statistics(arrays.gradient.data(), gradient, n).square_sum, statistics.square_sum);
        EXPECT_TRUE(arrays.same_elements(without));
      }
    }
  }
}

TEST_P(OptimizerStatistics, TellWhatIsNotFinite) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (std::int64_t at = 0; at < 45; ++at) {
      OptimizerArrays arrays({OptimizerKind::sgd, MomentFormat::f32, DType::f16, std::nullopt, false}, 45, 0);
      arrays.fill_gradient(3, 1.0f);
      GradientStatistics statistics{0};
      OptimizerTile tile = arrays.tile();
      tile.statistics = &statistics;
      optimizer_update_with(GetParam(), tile, test::lively_params(OptimizerKind::sgd, 1));
      EXPECT_TRUE(statistics.is_finite());
      arrays.set_gradient(at, bad);
      optimizer_update_with(GetParam(), tile, test::lively_params(OptimizerKind::sgd, 1));
      EXPECT_FALSE(statistics.is_finite()) << bad << " at " << at;
      EXPECT_FALSE(gradient_statistics(arrays.gradient.data(), DType::f16, 45).is_finite());
    }
  }
}

TEST_P(OptimizerStatistics, AreFiniteForTheLargestGradients) {
  OptimizerArrays arrays({OptimizerKind::sgd, MomentFormat::f32, DType::f32, std::nullopt, false}, 64, 0);
  for (std::int64_t i = 0; i < arrays.n; ++i) arrays.set_gradient(i, std::numeric_limits<float>::max());
  GradientStatistics statistics{0};
  OptimizerTile tile = arrays.tile();
  tile.statistics = &statistics;
  optimizer_update_with(GetParam(), tile, test::lively_params(OptimizerKind::sgd, 1));
  EXPECT_TRUE(statistics.is_finite());
}

INSTANTIATE_TEST_SUITE_P(Available, OptimizerStatistics, testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(info.param); });

class SplitMaster : public testing::TestWithParam<std::string_view> {};

// An update by nothing: SGD with a gradient of -0, so that p - lr * g is p whatever p is.
TEST_P(SplitMaster, HoldsEveryF32Exactly) {
  std::vector<float> values = {0.0f, -0.0f, 1e-45f, -1e-45f, 1.1754944e-38f, 3.4028235e38f, -3.4028235e38f, kInfinity, -kInfinity};
  // All that rounds up, down and as a tie, in both signs.
  for (const std::uint32_t upper : {0x3f80u, 0x3f81u, 0x3fffu, 0xbf80u, 0x0000u, 0x8000u, 0x7f7fu, 0xff7fu}) {
    for (const std::uint32_t lower : {0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>((upper << 16) | lower));
    }
  }
  OptimizerArrays arrays({OptimizerKind::sgd, MomentFormat::f32, DType::f32, DType::bf16, true}, static_cast<std::int64_t>(values.size()), 1);
  for (std::int64_t i = 0; i < arrays.n; ++i) {
    arrays.set_master(i, values[static_cast<std::size_t>(i)]);
    arrays.set_gradient(i, 0.0f);
  }
  OptimizerParams p;
  p.kind = OptimizerKind::sgd;
  optimizer_update_with(GetParam(), arrays.tile(), p);
  for (std::int64_t i = 0; i < arrays.n; ++i) {
    const float x = values[static_cast<std::size_t>(i)];
    EXPECT_EQ(std::bit_cast<std::uint32_t>(arrays.master_at(i)), std::bit_cast<std::uint32_t>(x)) << x;
    // To nearest, ties away from zero; between the largest finite and infinity, by the bits.
    const std::uint32_t nearest = (std::bit_cast<std::uint32_t>(x) + 0x8000u) >> 16;
    EXPECT_EQ(arrays.weight.get<std::uint16_t>(i), nearest) << x;
  }
}

TEST_P(SplitMaster, MakesANaNQuiet) {
  OptimizerArrays arrays({OptimizerKind::sgd, MomentFormat::f32, DType::f32, DType::bf16, true}, 16, 0);
  for (std::int64_t i = 0; i < arrays.n; ++i) arrays.set_gradient(i, i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
  arrays.weight.set(1, std::uint16_t{0xffff});  // a NaN whose lower half alone would carry into the upper
  arrays.low.set(1, std::uint16_t{0x7fff});
  OptimizerParams p;
  p.kind = OptimizerKind::sgd;
  optimizer_update_with(GetParam(), arrays.tile(), p);
  for (std::int64_t i = 0; i < arrays.n; ++i) {
    if (i % 2 == 1 && i != 1) continue;
    EXPECT_EQ(arrays.weight.get<std::uint16_t>(i), 0x7fc0) << i;
    EXPECT_EQ(arrays.low.get<std::uint16_t>(i), 0) << i;
  }
}

// Over many steps the split master is the whole one, bit by bit.
TEST_P(SplitMaster, IsTheWholeMaster) {
  for (const OptimizerKind kind : test::kAllKinds) {
    OptimizerArrays split({kind, MomentFormat::f32, DType::bf16, DType::bf16, true}, 333, 1);
    OptimizerArrays whole({kind, MomentFormat::f32, DType::bf16, std::nullopt, false}, 333, 2);
    whole.fill_state(5);
    for (std::int64_t i = 0; i < split.n; ++i) split.set_master(i, whole.master_at(i));
    for (std::size_t m = 0; m < whole.moments.size(); ++m) split.moments[m].copy_from(whole.moments[m]);
    for (std::int64_t step = 1; step <= 30; ++step) {
      whole.fill_gradient(static_cast<std::uint32_t>(step), 1e-2f);
      split.gradient.copy_from(whole.gradient);
      optimizer_update_with(GetParam(), split.tile(), test::lively_params(kind, step));
      optimizer_update_with(GetParam(), whole.tile(), test::lively_params(kind, step));
    }
    for (std::int64_t i = 0; i < split.n; ++i) ASSERT_EQ(split.master_at(i), whole.master_at(i)) << traits_of(kind).name << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Available, SplitMaster, testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(info.param); });

TEST(OptimizerParallel, GivesTheBitsOfOneThread) {
  set_parallel_threads(3);
  for (const MomentFormat format : {MomentFormat::f32, MomentFormat::bf16, MomentFormat::block8}) {
    for (const std::int64_t n : {0, 1, 65'535, 65'536, 300'001}) {
      OptimizerArrays arrays({OptimizerKind::adam, format, DType::bf16, DType::bf16, false}, n, 0);
      arrays.fill_state(6);
      arrays.fill_gradient(7, 1e-2f);
      OptimizerArrays expected = arrays;
      OptimizerTile tile = arrays.tile(), same = expected.tile();
      tile.position = same.position = (std::uint64_t{1} << 32) - 1024;
      optimizer_update_parallel(tile, test::lively_params(OptimizerKind::adam, 4));
      optimizer_update(same, test::lively_params(OptimizerKind::adam, 4));
      EXPECT_TRUE(arrays.same_elements(expected)) << name_of(format) << " n " << n;
    }
  }
}

// Two groups, each by its own thread with its own hyper-parameters, and the same one after the other.
TEST(OptimizerGroups, ShareNoState) {
  constexpr int kSteps = 200;
  const auto group = [](OptimizerKind kind, MomentFormat format) {
    OptimizerArrays arrays({kind, format, DType::f32, DType::bf16, false}, 1000, 0);
    arrays.fill_state(8);
    arrays.fill_gradient(9, 1e-2f);
    return arrays;
  };
  const auto params = [](OptimizerKind kind, std::int64_t step) {
    OptimizerParams p = test::lively_params(kind, step);
    p.learning_rate = kind == OptimizerKind::adam ? 1e-3 : 1e-2;
    p.seed = kind == OptimizerKind::adam ? 1 : 2;
    return p;
  };
  OptimizerArrays adam = group(OptimizerKind::adam, MomentFormat::bf16), lion = group(OptimizerKind::lion, MomentFormat::block8);
  OptimizerArrays adam_alone = adam, lion_alone = lion;
  const auto train = [&](OptimizerArrays& arrays) {
    for (std::int64_t step = 1; step <= kSteps; ++step) optimizer_update(arrays.tile(), params(arrays.variant.kind, step));
  };
  std::thread first([&] { train(adam); }), second([&] { train(lion); });
  first.join();
  second.join();
  train(adam_alone);
  train(lion_alone);
  EXPECT_TRUE(adam.same_elements(adam_alone));
  EXPECT_TRUE(lion.same_elements(lion_alone));
}

TEST(Optimizer, ZeroDecayLeavesSignsAndInfinitiesAlone) {
  for (const OptimizerKind kind : test::kAllKinds) {
    for (const bool decoupled : {true, false}) {
      OptimizerArrays arrays({kind, MomentFormat::f32, DType::f32, std::nullopt, false}, 2, 0);
      arrays.set_master(0, kInfinity);
      arrays.set_gradient(0, 1.0f);
      arrays.set_gradient(1, -0.0f);
      OptimizerParams p = test::lively_params(kind, 1);
      p.decoupled_decay = decoupled;
      p.weight_decay = 0;
      if (!arrays.moments.empty()) arrays.moments[0].set(1, -0.0f);
      optimizer_update(arrays.tile(), p);
      EXPECT_EQ(arrays.master_at(0), kInfinity) << traits_of(kind).name;
      const bool adds_squares = kind == OptimizerKind::adagrad;
      if (!arrays.moments.empty() && !adds_squares) {
        EXPECT_TRUE(std::signbit(arrays.moments[0].get<float>(1))) << traits_of(kind).name;
      }
    }
  }
}

// A sign that is neither up nor down moves nothing.
TEST(Optimizer, LionStaysWhereTheDirectionIsZero) {
  OptimizerArrays arrays({OptimizerKind::lion, MomentFormat::f32, DType::f32, std::nullopt, false}, 2, 0);
  arrays.set_master(0, 0.5f);
  arrays.set_master(1, 0.5f);
  arrays.set_gradient(0, 0.0f);
  arrays.set_gradient(1, -0.0f);
  OptimizerParams p = test::lively_params(OptimizerKind::lion, 1);
  p.weight_decay = 0;
  optimizer_update(arrays.tile(), p);
  EXPECT_EQ(arrays.master_at(0), 0.5f);
  EXPECT_EQ(arrays.master_at(1), 0.5f);
}

#if defined(__x86_64__)
// As trainers set it, flush-to-zero and denormals-are-zero; the arithmetic of the library keeps subnormals.
TEST(Optimizer, KeepsSubnormalsForACallerThatFlushesThem) {
  for (const std::string_view isa : available_isas()) {
    OptimizerArrays start({OptimizerKind::adam, MomentFormat::f32, DType::f32, DType::f16, false}, 300, 2);
    for (std::int64_t i = 0; i < start.n; ++i) {
      start.set_master(i, std::ldexp(1.5f, -149 + static_cast<int>(i % 40)));
      start.set_gradient(i, std::ldexp(1.25f, -149 + static_cast<int>(i % 60)));
    }
    const OptimizerParams p = test::lively_params(OptimizerKind::adam, 7);
    OptimizerArrays expected = start, arrays = start;
    optimizer_update_with(isa, expected.tile(), p);
    const double square_sum = gradient_statistics(start.gradient.data(), DType::f32, start.n).square_sum;
    const unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8040u);
    optimizer_update_with(isa, arrays.tile(), p);
    const double square_sum_flushing = gradient_statistics(start.gradient.data(), DType::f32, start.n).square_sum;
    const unsigned mode_after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode);
    EXPECT_EQ(mode_after & 0x8040u, 0x8040u);
    EXPECT_TRUE(arrays.same_elements(expected)) << isa;
    EXPECT_EQ(square_sum_flushing, square_sum);
    EXPECT_GT(square_sum, 0);
  }
}
#endif

TEST(AvailableIsas, EndWithScalar) {
  const std::vector<std::string_view> isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.back(), "scalar");
  EXPECT_EQ(std::count(isas.begin(), isas.end(), "scalar"), 1);
}

// SPILLWAY_ISA is read once, so each case runs in a process of its own that has not asked yet.
class IsaChoice : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  // Prints the active instruction set and ends with 0, or the error and ends with 3.
  [[noreturn]] static void report_active(const char* forced) {
    if (forced == nullptr) {
      unsetenv("SPILLWAY_ISA");
    } else {
      setenv("SPILLWAY_ISA", forced, 1);
    }
    try {
      std::fprintf(stderr, "active: %s.", std::string(active_isa()).c_str());
    } catch (const ConfigError& error) {
      std::fprintf(stderr, "%s", error.what());
      std::exit(3);
    }
    std::exit(0);
  }
};
using IsaChoiceDeathTest = IsaChoice;

TEST_F(IsaChoiceDeathTest, IsTheBestUnlessForced) {
  EXPECT_EXIT(report_active(nullptr), testing::ExitedWithCode(0), "active: " + std::string(available_isas().front()) + "\\.");
  for (const std::string_view isa : available_isas()) {
    EXPECT_EXIT(report_active(std::string(isa).c_str()), testing::ExitedWithCode(0), "active: " + std::string(isa) + "\\.");
  }
}

TEST_F(IsaChoiceDeathTest, RefusesAnUnknownName) {
  EXPECT_EXIT(report_active("scalr"), testing::ExitedWithCode(3),
              "SPILLWAY_ISA names an unknown instruction set \"scalr\" \\(did you mean \"scalar\"\\?\\); "
              "usable here: .*scalar");
}

TEST(Optimizer, RefusesAnUnknownInstructionSetFromTheCaller) {
  OptimizerArrays arrays({}, 1, 0);
  EXPECT_THAT([&] { optimizer_update_with("sse9", arrays.tile(), {}); },
              testing::ThrowsMessage<ConfigError>(testing::HasSubstr("unknown instruction set \"sse9\"")));
}

}  // namespace
}  // namespace spillway
