// The CPU Adam across instruction sets: the same bits however a tile is computed, and the choice by name.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cpu_adam_arrays.h"
#include "spillway/cpu_adam.h"
#include "spillway/error.h"

namespace spillway {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

AdamParams params(bool decoupled, std::int64_t step) {
  return {.learning_rate = 1e-2,
          .beta1 = 0.9,
          .beta2 = 0.999,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .decoupled_decay = decoupled,
          .bias_correction = true,
          .step = step,
          .gradient_scale = 0.37f};
}

// Gradients of all sizes, among them zeros of both signs, subnormals, the largest finite and infinities.
void fill_wild_gradient(AdamArrays& arrays, std::uint32_t seed) {
  static constexpr float kSpecial[] = {0.0f,    -0.0f,      1e-45f,     -3e-42f, 1.1754944e-38f, 6e-8f,
                                       -6.1e-5f, 65504.0f, 3.4e38f, -3.4028235e38f, kInfinity, -kInfinity};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < arrays.n; ++i) {
    const float ordinary = std::ldexp(normal(random), static_cast<int>(random() % 40) - 30);
    arrays.gradient.set(i, random() % 4 == 0 ? kSpecial[random() % std::size(kSpecial)] : ordinary);
  }
}

// The arrays after one scalar update of the whole tile: what everything else must equal.
AdamArrays reference(const AdamArrays& before, const AdamParams& p) {
  AdamArrays after = before;
  adam_update_with("scalar", after.tile(), p);
  return after;
}

// The elements only: `to` keeps its own misalignment.
void copy_elements(const AdamArrays& from, AdamArrays& to) {
  std::memcpy(to.master.data(), from.master.bytes(), from.master.size_bytes());
  std::memcpy(to.exp_avg.data(), from.exp_avg.bytes(), from.exp_avg.size_bytes());
  std::memcpy(to.exp_avg_sq.data(), from.exp_avg_sq.bytes(), from.exp_avg_sq.size_bytes());
  std::memcpy(to.gradient.data(), from.gradient.bytes(), from.gradient.size_bytes());
  std::memcpy(to.weight.data(), from.weight.bytes(), from.weight.size_bytes());
}

class CpuAdamIsa : public testing::TestWithParam<std::string_view> {};

TEST_P(CpuAdamIsa, GivesTheScalarBitsAtEverySizeAndMisalignment) {
  for (const AdamTypes& types : all_adam_types()) {
    for (const bool decoupled : {true, false}) {
      for (const std::int64_t n : {0, 1, 7, 15, 16, 17, 31, 33, 127}) {
        AdamArrays start(types, n, 0);
        start.fill_state(11);
        fill_wild_gradient(start, static_cast<std::uint32_t>(n));
        const AdamArrays expected = reference(start, params(decoupled, 3));
        for (int misalignment = 0; misalignment < 16; ++misalignment) {
          AdamArrays arrays(types, n, misalignment);
          copy_elements(start, arrays);
          adam_update_with(GetParam(), arrays.tile(), params(decoupled, 3));
          ASSERT_TRUE(arrays.same_elements(expected)) << types.name() << " n " << n << " offset " << misalignment;
          ASSERT_TRUE(arrays.canaries_alive()) << types.name() << " n " << n << " offset " << misalignment;
        }
      }
    }
  }
}

TEST_P(CpuAdamIsa, GivesTheSameBitsHoweverATileIsCut) {
  constexpr std::int64_t n = 70;
  for (const AdamTypes& types : all_adam_types()) {
    AdamArrays start(types, n, 5);
    start.fill_state(12);
    fill_wild_gradient(start, 13);
    const AdamArrays expected = reference(start, params(true, 9));
    for (std::int64_t first = 0; first <= n; ++first) {
      for (std::int64_t second = first; second <= n; ++second) {
        AdamArrays arrays = start;
        adam_update_with(GetParam(), arrays.tile(0, first), params(true, 9));
        adam_update_with(GetParam(), arrays.tile(second, n), params(true, 9));
        adam_update_with(GetParam(), arrays.tile(first, second), params(true, 9));
        ASSERT_TRUE(arrays.same_elements(expected)) << types.name() << " cut at " << first << " and " << second;
      }
    }
  }
}

// Large enough that aligned 16-bit weights are stored past the cache; misaligned ones cannot be.
TEST_P(CpuAdamIsa, GivesTheScalarBitsForLargeTiles) {
  constexpr std::int64_t n = 1'000'003;
  for (const AdamTypes& types : {AdamTypes{DType::f16, DType::f16, true}, AdamTypes{DType::bf16, DType::bf16, true},
                                 AdamTypes{DType::f32, DType::f32, true}}) {
    AdamArrays start(types, n, 0);
    start.fill_state(14);
    fill_wild_gradient(start, 15);
    const AdamArrays expected = reference(start, params(true, 2));
    for (const int misalignment : {0, 1}) {
      AdamArrays arrays(types, n, misalignment);
      copy_elements(start, arrays);
      adam_update_with(GetParam(), arrays.tile(), params(true, 2));
      EXPECT_TRUE(arrays.same_elements(expected)) << types.name() << " offset " << misalignment;
      EXPECT_TRUE(arrays.canaries_alive()) << types.name() << " offset " << misalignment;
    }
  }
}

// A NaN's payload is unspecified, but a NaN must appear in the same elements and in nothing else.
TEST_P(CpuAdamIsa, KeepsNaNWhereItIs) {
  for (const AdamTypes& types : all_adam_types()) {
    AdamArrays arrays(types, 45, 1);
    arrays.fill_state(16);
    arrays.fill_gradient(17, 1.0f);
    for (std::int64_t i = 0; i < arrays.n; i += 4) arrays.gradient.set(i, std::numeric_limits<float>::quiet_NaN());
    adam_update_with(GetParam(), arrays.tile(), params(true, 1));
    for (std::int64_t i = 0; i < arrays.n; ++i) {
      EXPECT_EQ(std::isnan(arrays.master.value(i)), i % 4 == 0) << types.name() << " element " << i;
      if (types.has_weight) {
        EXPECT_EQ(std::isnan(arrays.weight.value(i)), i % 4 == 0) << types.name() << " element " << i;
      }
    }
  }
}

TEST_P(CpuAdamIsa, DoesNotTouchTheGradient) {
  for (const AdamTypes& types : all_adam_types()) {
    AdamArrays arrays(types, 45, 1);
    arrays.fill_state(18);
    arrays.fill_gradient(19, 1.0f);
    const GuardedArray before = arrays.gradient;
    adam_update_with(GetParam(), arrays.tile(), params(false, 1));
    EXPECT_TRUE(arrays.gradient.same_elements(before));
  }
}

// The caller's rounding mode stands for all of its floating-point state, flush-to-zero included.
TEST_P(CpuAdamIsa, IgnoresTheCallersArithmeticModeAndRestoresIt) {
  AdamArrays start({DType::f32, DType::f16, true}, 45, 2);
  start.fill_state(20);
  fill_wild_gradient(start, 21);
  const AdamArrays expected = reference(start, params(true, 7));
  AdamArrays arrays = start;
  std::fesetround(FE_UPWARD);
  adam_update_with(GetParam(), arrays.tile(), params(true, 7));
  const int mode = std::fegetround();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(mode, FE_UPWARD);
  EXPECT_TRUE(arrays.same_elements(expected));
}

INSTANTIATE_TEST_SUITE_P(Available, CpuAdamIsa, testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(info.param); });

TEST(CpuAdam, ListsScalarLast) {
  const std::vector<std::string_view> isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.back(), "scalar");
  EXPECT_EQ(std::count(isas.begin(), isas.end(), "scalar"), 1);
}

TEST(CpuAdam, ZeroDecayOfEitherKindLeavesSignsAndInfinitiesAlone) {
  for (const bool decoupled : {true, false}) {
    AdamArrays arrays({DType::f32, DType::f32, false}, 2, 0);
    arrays.fill_state(22);
    arrays.master.set(0, kInfinity);
    arrays.gradient.set(0, 1.0f);
    arrays.gradient.set(1, -0.0f);
    arrays.exp_avg.set(1, -0.0f);
    AdamParams p = params(decoupled, 1);
    p.weight_decay = 0;
    adam_update(arrays.tile(), p);
    EXPECT_EQ(arrays.master.value(0), kInfinity);
    EXPECT_TRUE(std::signbit(arrays.exp_avg.value(1)));
  }
}

// SPILLWAY_ISA is read once, so each case runs in a process of its own that has not asked yet.
class CpuAdamChoice : public testing::Test {
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
using CpuAdamChoiceDeathTest = CpuAdamChoice;

TEST_F(CpuAdamChoiceDeathTest, IsTheBestUnlessForced) {
  EXPECT_EXIT(report_active(nullptr), testing::ExitedWithCode(0),
              "active: " + std::string(available_isas().front()) + "\\.");
  for (const std::string_view isa : available_isas()) {
    EXPECT_EXIT(report_active(std::string(isa).c_str()), testing::ExitedWithCode(0),
                "active: " + std::string(isa) + "\\.");
  }
}

TEST_F(CpuAdamChoiceDeathTest, RefusesAnUnknownName) {
  EXPECT_EXIT(report_active("scalr"), testing::ExitedWithCode(3),
              "SPILLWAY_ISA names an unknown instruction set \"scalr\" \\(did you mean \"scalar\"\\?\\); "
              "usable here: .*scalar");
}

TEST(CpuAdam, RefusesAnUnknownNameFromTheCaller) {
  AdamArrays arrays({DType::f32, DType::f32, false}, 1, 0);
  EXPECT_THAT([&] { adam_update_with("sse9", arrays.tile(), params(true, 1)); },
              testing::ThrowsMessage<ConfigError>(testing::HasSubstr("unknown instruction set \"sse9\"")));
}

}  // namespace
}  // namespace spillway
