// The optimizers across instruction sets: the same bits however a tile is computed.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "spillway/optimizer.h"
#include "support/optimizer_arrays.h"

namespace spillway {
namespace {

using test::OptimizerArrays;
using test::OptimizerVariant;

// What everything else must equal: the arrays after one scalar update of the whole tile.
OptimizerArrays reference(const OptimizerArrays& before, const OptimizerParams& p, std::uint64_t position) {
  OptimizerArrays after = before;
  OptimizerTile tile = after.tile();
  tile.position = position;
  optimizer_update_with("scalar", tile, p);
  return after;
}

struct Case {
  std::string isa;
  OptimizerKind kind;
  MomentFormat moments;
};

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const std::string_view isa : available_isas()) {
    for (const OptimizerKind kind : test::kAllKinds) {
      for (const MomentFormat format : {MomentFormat::f32, MomentFormat::bf16, MomentFormat::block8}) {
        if (test::exists(kind, format)) all.push_back({std::string(isa), kind, format});
      }
    }
  }
  return all;
}

class OptimizerIsa : public testing::TestWithParam<Case> {
 protected:
  std::vector<OptimizerVariant> variants() const { return test::variants_of(GetParam().kind, GetParam().moments); }
  OptimizerParams params(std::int64_t step) const { return test::lively_params(GetParam().kind, step); }
  void update(OptimizerTile tile, const OptimizerParams& p, std::uint64_t position) const {
    tile.position = position;
    optimizer_update_with(GetParam().isa, tile, p);
  }
};

TEST_P(OptimizerIsa, GivesTheScalarBitsAtEveryMisalignment) {
  for (const OptimizerVariant& variant : variants()) {
    for (const std::int64_t n : {1, 33, 300}) {
      OptimizerArrays start(variant, n, 0);
      start.fill_state(11);
      test::fill_wild_gradient(start, static_cast<std::uint32_t>(n), true);
      const OptimizerArrays expected = reference(start, params(3), 512);
      for (int misalignment = 0; misalignment < 16; ++misalignment) {
        OptimizerArrays arrays(variant, n, misalignment);
        arrays.copy_from(start);
        update(arrays.tile(), params(3), 512);
        ASSERT_TRUE(arrays.same_elements(expected)) << variant.name() << " n " << n << " offset " << misalignment;
        ASSERT_TRUE(arrays.canaries_alive()) << variant.name() << " n " << n << " offset " << misalignment;
      }
    }
  }
}

// The variants take turns, and both signs of every choice among the hyper-parameters.
TEST_P(OptimizerIsa, GivesTheScalarBitsAtEveryTail) {
  const std::vector<OptimizerVariant> all = variants();
  for (std::int64_t n = 0; n <= 2 * kMomentBlock + 17; ++n) {
    OptimizerArrays start(all[static_cast<std::size_t>(n) % all.size()], n, static_cast<int>(n % 16));
    start.fill_state(12);
    test::fill_wild_gradient(start, static_cast<std::uint32_t>(n), n % 2 == 0);
    OptimizerParams p = params(1 + n % 3);
    p.decoupled_decay = n % 2 == 0;
    p.nesterov = n % 4 < 2;
    if (n % 5 == 0) p.weight_decay = 0;
    const OptimizerArrays expected = reference(start, p, 256);
    OptimizerArrays arrays = start;
    update(arrays.tile(), p, 256);
    ASSERT_TRUE(arrays.same_elements(expected)) << start.variant.name() << " n " << n;
    ASSERT_TRUE(arrays.canaries_alive()) << start.variant.name() << " n " << n;
  }
}

// Around a multiple of 2^32, from which on the random bits have other keys.
TEST_P(OptimizerIsa, GivesTheSameBitsHoweverATileIsCut) {
  const bool blocks = GetParam().moments == MomentFormat::block8;
  const std::int64_t n = blocks ? 5 * kMomentBlock + 9 : 70;
  const std::int64_t unit = blocks ? kMomentBlock : 1;
  const std::uint64_t position = (std::uint64_t{3} << 32) - static_cast<std::uint64_t>(blocks ? 2 * kMomentBlock : 37);
  for (const OptimizerVariant& variant : variants()) {
    OptimizerArrays start(variant, n, 5);
    start.fill_state(12);
    test::fill_wild_gradient(start, 13, true);
    const OptimizerArrays expected = reference(start, params(9), position);
    for (std::int64_t first = 0; first <= n; first += unit) {
      for (std::int64_t second = first; second <= n; second += unit * (blocks ? 1 : 3)) {
        OptimizerArrays arrays = start;
        OptimizerTile tile = arrays.tile();
        tile.position = position;
        for (const auto& [from, to] : {std::pair{second, n}, {std::int64_t{0}, first}, {first, second}}) {
          optimizer_update_with(GetParam().isa, part_of(tile, from, to - from), params(9));
        }
        ASSERT_TRUE(arrays.same_elements(expected)) << variant.name() << " cut at " << first << " and " << second;
      }
    }
  }
}

// A NaN's payload is unspecified, but a NaN must appear in the same elements and in nothing else; among 8-bit moments, in the
// same blocks.
TEST_P(OptimizerIsa, KeepsNaNWhereItIs) {
  constexpr std::int64_t n = 2 * kMomentBlock;
  const bool blocks = GetParam().moments == MomentFormat::block8;
  for (const OptimizerVariant& variant : variants()) {
    OptimizerArrays arrays(variant, n, 1);
    arrays.fill_state(16);
    arrays.fill_gradient(17, 1.0f);
    for (std::int64_t i = 0; i < kMomentBlock; i += 4) arrays.set_gradient(i, std::numeric_limits<float>::quiet_NaN());
    update(arrays.tile(), params(1), 0);
    for (std::int64_t i = 0; i < n; ++i) {
      const bool expected = i < kMomentBlock && i % 4 == 0;
      EXPECT_EQ(std::isnan(arrays.master_at(i)), expected) << variant.name() << " element " << i;
      if (variant.weight) {
        EXPECT_EQ(std::isnan(arrays.weight_at(i)), expected) << variant.name() << " element " << i;
      }
    }
    for (std::size_t m = 0; m < arrays.moments.size(); ++m) {
      const std::vector<float> moments = arrays.moments_at(m);
      for (std::int64_t i = 0; i < n; ++i) {
        const bool expected = i < kMomentBlock && (i % 4 == 0 || blocks);
        EXPECT_EQ(std::isnan(moments[static_cast<std::size_t>(i)]), expected) << variant.name() << " moment " << m << " element " << i;
      }
    }
  }
}

TEST_P(OptimizerIsa, DoesNotTouchTheGradient) {
  for (const OptimizerVariant& variant : variants()) {
    OptimizerArrays arrays(variant, 45, 1);
    arrays.fill_state(18);
    arrays.fill_gradient(19, 1.0f);
    const test::OffsetBytes before = arrays.gradient;
    update(arrays.tile(), params(1), 0);
    EXPECT_TRUE(arrays.gradient.same(before)) << variant.name();
  }
}

INSTANTIATE_TEST_SUITE_P(Available, OptimizerIsa, testing::ValuesIn(all_cases()), [](const auto& info) {
  return info.param.isa + "_" + std::string(traits_of(info.param.kind).name) + "_" + std::string(name_of(info.param.moments));
});

class OptimizerIsaLarge : public testing::TestWithParam<std::string_view> {};

// Large enough that aligned 16-bit weights are stored past the cache; misaligned ones cannot be.
TEST_P(OptimizerIsaLarge, GivesTheScalarBits) {
  constexpr std::int64_t n = (1 << 20) + 3;
  for (const OptimizerVariant& variant : {OptimizerVariant{OptimizerKind::adam, MomentFormat::f32, DType::f16, DType::f16, false},
                                          OptimizerVariant{OptimizerKind::adam, MomentFormat::bf16, DType::bf16, DType::bf16, false},
                                          OptimizerVariant{OptimizerKind::adam, MomentFormat::block8, DType::f32, DType::f32, false},
                                          OptimizerVariant{OptimizerKind::lion, MomentFormat::block8, DType::bf16, DType::bf16, true}}) {
    const OptimizerParams p = test::lively_params(variant.kind, 2);
    OptimizerArrays start(variant, n, 0);
    start.fill_state(14);
    test::fill_wild_gradient(start, 15, false);
    const OptimizerArrays expected = reference(start, p, 0);
    for (const int misalignment : {0, 1}) {
      OptimizerArrays arrays(variant, n, misalignment);
      arrays.copy_from(start);
      optimizer_update_with(GetParam(), arrays.tile(), p);
      EXPECT_TRUE(arrays.same_elements(expected)) << variant.name() << " offset " << misalignment;
      EXPECT_TRUE(arrays.canaries_alive()) << variant.name() << " offset " << misalignment;
    }
  }
}

// Instructions that convert are not all alike in what they make of these.
TEST_P(OptimizerIsaLarge, RoundsSubnormalMastersAsScalarDoes) {
  for (const DType weight : {DType::bf16, DType::f16}) {
    OptimizerArrays start({OptimizerKind::sgd, MomentFormat::f32, DType::f32, weight, false}, 16 * 150, 0);
    for (std::int64_t i = 0; i < start.n; ++i) {
      // Alone among normal ones, and in company; of both signs.
      const bool small = i % 32 == 5 || i % 32 >= 16;
      const float x = small ? std::ldexp(1.0f + static_cast<float>(i % 251) / 256, -149 + static_cast<int>(i / 16)) : 1.0f / 3;
      start.set_master(i, i % 2 == 0 ? x : -x);
      start.set_gradient(i, 0.0f);
    }
    OptimizerParams p;
    p.kind = OptimizerKind::sgd;
    const OptimizerArrays expected = reference(start, p, 0);
    optimizer_update_with(GetParam(), start.tile(), p);
    EXPECT_TRUE(start.same_elements(expected)) << name_of(weight);
    if (weight == DType::bf16) {
      EXPECT_NE(start.weight_at(16 * 20 + 17), 0.0f);
    }
  }
}

// The caller's rounding mode stands for all of its floating-point state.
TEST_P(OptimizerIsaLarge, IgnoresTheCallersRoundingModeAndRestoresIt) {
  for (const MomentFormat format : {MomentFormat::f32, MomentFormat::block8}) {
    OptimizerArrays start({OptimizerKind::adam, format, DType::f32, DType::f16, false}, 300, 2);
    start.fill_state(20);
    test::fill_wild_gradient(start, 21, true);
    const OptimizerParams p = test::lively_params(OptimizerKind::adam, 7);
    const OptimizerArrays expected = reference(start, p, 0);
    OptimizerArrays arrays = start;
    std::fesetround(FE_UPWARD);
    optimizer_update_with(GetParam(), arrays.tile(), p);
    const int mode = std::fegetround();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(mode, FE_UPWARD);
    EXPECT_TRUE(arrays.same_elements(expected));
  }
}

INSTANTIATE_TEST_SUITE_P(Available, OptimizerIsaLarge, testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace spillway
