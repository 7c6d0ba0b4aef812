// Moments in bf16 and 8 bits: exactly what the f32 update gives, rounded as stated; the roundings themselves, by code written
// from their statement; and that they err in neither direction.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/stochastic_rounding.h"
#include "spillway/optimizer.h"
#include "support/optimizer_arrays.h"

namespace spillway {
namespace {

using test::OptimizerArrays;
using test::OptimizerVariant;

constexpr double kLargestFloat = std::numeric_limits<float>::max();
constexpr std::array kLaws = {MomentLaw::square, MomentLaw::fourth_power};

std::uint16_t stated_bf16(float x, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t discarded = bits & 0xffffu;
  if (std::isnan(x)) return 0x7fc0;
  const bool up = std::fabs(x) < std::bit_cast<float>(0x7f7f0000u) && discarded + random >= 0x10000u;
  return static_cast<std::uint16_t>((bits >> 16) + (up ? 1 : 0));
}

int largest_code(MomentLaw law) { return law == MomentLaw::square ? 127 : 255; }

// Of a code that is not negative, without the scale, in f32.
float code_value(MomentLaw law, int code) {
  const float square = static_cast<float>(code * code);
  return law == MomentLaw::square ? square : square * square;
}

struct StatedBlock {
  std::uint8_t scale = 0;
  std::vector<int> codes;
};

// By the table of code values. `random[i]`: 16 bits.
StatedBlock stated_block(MomentLaw law, std::span<const float> values, std::span<const std::uint32_t> random) {
  StatedBlock block{0, std::vector<int>(values.size(), 0)};
  double largest = 0;
  bool finite = true;
  for (const float x : values) {
    finite = finite && std::isfinite(x);
    largest = std::max(largest, std::fabs(static_cast<double>(x)));
  }
  if (!finite) block.scale = 255;
  if (!finite || largest == 0) return block;
  const int most = largest_code(law);
  const double most_value = code_value(law, most);
  int exponent = -126;
  while (most_value * std::ldexp(1.0, exponent) < largest) ++exponent;
  block.scale = static_cast<std::uint8_t>(exponent + 127);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float y = std::ldexp(std::fabs(values[i]), -exponent);
    int code = 0;
    while (code < most && code_value(law, code + 1) <= y) ++code;
    const float below = code_value(law, code), above = code_value(law, code + 1);
    if (static_cast<float>(random[i]) * 0x1p-16f * (above - below) < y - below) ++code;
    if (law == MomentLaw::fourth_power && values[i] > 0) code = std::max(code, 1);
    if (y > most_value / 2) {
      int least = 0;
      while (code_value(law, least) <= most_value / 2) ++least;
      code = std::max(code, least);
    }
    code = std::min(code, most);
    while (code_value(law, code) * std::ldexp(1.0, exponent) > kLargestFloat) --code;
    block.codes[i] = std::signbit(values[i]) ? -code : code;
  }
  return block;
}

// What the values of a moment have to become.
void stated_moments(const OptimizerVariant& variant, std::size_t moment, const std::vector<float>& values, const OptimizerParams& p,
                    test::OffsetBytes& bytes, test::OffsetBytes& scales) {
  std::vector<std::uint32_t> random;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = rounding_bits(rounding_keys(p.seed, p.step, i), static_cast<std::uint32_t>(i));
    random.push_back(moment == 0 ? bits >> 16 : bits & 0xffffu);
  }
  if (variant.moments == MomentFormat::bf16) {
    for (std::size_t i = 0; i < values.size(); ++i) bytes.set(static_cast<std::int64_t>(i), stated_bf16(values[i], random[i]));
    return;
  }
  for (std::size_t i = 0; i < values.size(); i += kMomentBlock) {
    const std::size_t n = std::min<std::size_t>(kMomentBlock, values.size() - i);
    const StatedBlock block = stated_block(variant.law(moment), {values.data() + i, n}, {random.data() + i, n});
    scales.set(static_cast<std::int64_t>(i / kMomentBlock), block.scale);
    for (std::size_t j = 0; j < n; ++j) bytes.set(static_cast<std::int64_t>(i + j), static_cast<std::uint8_t>(block.codes[j]));
  }
}

// The same state with f32 moments.
OptimizerArrays with_f32_moments(const OptimizerArrays& arrays) {
  OptimizerVariant variant = arrays.variant;
  variant.moments = MomentFormat::f32;
  OptimizerArrays result(variant, arrays.n, 0);
  result.master.copy_from(arrays.master);
  result.low.copy_from(arrays.low);
  result.gradient.copy_from(arrays.gradient);
  result.weight.copy_from(arrays.weight);
  for (std::size_t m = 0; m < arrays.moments.size(); ++m) result.set_moments(m, arrays.moments_at(m));
  return result;
}

struct Case {
  std::string isa;
  OptimizerKind kind;
  MomentFormat format;
};

class OptimizerMoments : public testing::TestWithParam<Case> {};

// One update in the format, against that in f32 with its moments rounded.
testing::AssertionResult update_agrees(std::string_view isa, OptimizerArrays& arrays, const OptimizerParams& p) {
  OptimizerArrays f32 = with_f32_moments(arrays);
  OptimizerArrays expected = arrays;
  optimizer_update_with("scalar", f32.tile(), p);
  for (std::size_t m = 0; m < arrays.moments.size(); ++m) {
    stated_moments(arrays.variant, m, f32.moments_at(m), p, expected.moments[m], expected.scales[m]);
  }
  expected.master.copy_from(f32.master);
  expected.low.copy_from(f32.low);
  expected.weight.copy_from(f32.weight);
  optimizer_update_with(isa, arrays.tile(), p);
  for (std::size_t m = 0; m < arrays.moments.size(); ++m) {
    for (std::int64_t b = 0; b < static_cast<std::int64_t>(arrays.moments[m].size()); ++b) {
      if (arrays.moments[m].get<std::uint8_t>(b) == expected.moments[m].get<std::uint8_t>(b)) continue;
      return testing::AssertionFailure() << arrays.variant.name() << " step " << p.step << " moment " << m << " byte " << b;
    }
  }
  if (arrays.same_elements(expected)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << arrays.variant.name() << " step " << p.step << ": not the moments differ";
}

TEST_P(OptimizerMoments, AreThoseOfTheF32UpdateRoundedAsStated) {
  const auto& [isa, kind, format] = GetParam();
  for (const OptimizerVariant& variant : test::variants_of(kind, format)) {
    OptimizerArrays arrays(variant, kMomentBlock + 37, 1);
    arrays.fill_state(1);
    for (std::int64_t step = 1; step <= 100; ++step) {
      if (step % 10 == 1) arrays.fill_gradient(static_cast<std::uint32_t>(step), 1e-2f);
      ASSERT_TRUE(update_agrees(isa, arrays, test::lively_params(kind, step)));
    }
  }
}

// Blocks that hold subnormals, zeros and the largest finite, each alone and together.
TEST_P(OptimizerMoments, AreRoundedAsStatedWhereTheArithmeticIsExtreme) {
  static constexpr float kScales[] = {0.0f, 1e-45f, 1e-41f, 1.2e-38f, 1e-30f, 1e-22f, 1e18f, 3e38f};
  const auto& [isa, kind, format] = GetParam();
  for (const float scale : kScales) {
    OptimizerArrays arrays({kind, format, DType::f32, DType::f16, false}, 3 * kMomentBlock, 0);
    for (std::int64_t i = 0; i < arrays.n; ++i) {
      const float part = static_cast<float>(i % kMomentBlock) / static_cast<float>(kMomentBlock);
      arrays.set_gradient(i, i < kMomentBlock ? scale : i < 2 * kMomentBlock ? -scale * part : std::ldexp(scale, -static_cast<int>(i % kMomentBlock)));
    }
    OptimizerParams p = test::lively_params(kind, 1);
    p.gradient_scale = 1;
    p.weight_decay = 0;
    for (p.step = 1; p.step <= 3; ++p.step) ASSERT_TRUE(update_agrees(isa, arrays, p)) << "gradient scale " << scale;
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const std::string_view isa : available_isas()) {
    for (const OptimizerKind kind : test::kAllKinds) {
      for (const MomentFormat format : {MomentFormat::bf16, MomentFormat::block8}) {
        if (test::exists(kind, format)) all.push_back({std::string(isa), kind, format});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Available, OptimizerMoments, testing::ValuesIn(all_cases()), [](const auto& info) {
  return info.param.isa + "_" + std::string(traits_of(info.param.kind).name) + "_" + std::string(name_of(info.param.format));
});

// Momentum of 1 and a gradient of 0 keep a moment as it is, so that an update rounds what it decoded.
struct Kept {
  explicit Kept(MomentFormat format, std::int64_t n) : arrays({OptimizerKind::sgd_momentum, format, DType::f32, std::nullopt, false}, n, 0) {
    params.kind = OptimizerKind::sgd_momentum;
    params.momentum = 1;
  }
  OptimizerArrays arrays;
  OptimizerParams params;
};

TEST(OptimizerMomentsKept, ABf16StaysAsItIsWhateverTheRandomBits) {
  Kept kept(MomentFormat::bf16, 1 << 16);
  for (std::int64_t i = 0; i < kept.arrays.n; ++i) kept.arrays.moments[0].set(i, static_cast<std::uint16_t>(i));
  const OptimizerArrays before = kept.arrays;
  for (kept.params.step = 1; kept.params.step <= 20; ++kept.params.step) optimizer_update(kept.arrays.tile(), kept.params);
  for (std::int64_t i = 0; i < kept.arrays.n; ++i) {
    const float old = to_float(before.moments[0].get<bf16>(i));
    const float now = to_float(kept.arrays.moments[0].get<bf16>(i));
    // -0 + 0 is +0.
    ASSERT_TRUE(std::isnan(old) ? std::isnan(now) : old == now) << "bits " << i << ": " << old << " became " << now;
  }
}

// Every block that can come of encoding: any codes, among them one of the upper half or the least scale.
TEST(OptimizerMomentsKept, CodesOfEightBitsStayAsTheyAreWhateverTheRandomBits) {
  Kept kept(MomentFormat::block8, 242 * kMomentBlock);
  OptimizerArrays& arrays = kept.arrays;
  for (std::int64_t i = 0; i < arrays.n; ++i) {
    const std::int64_t scale = 1 + i / kMomentBlock;
    const std::int64_t code = i % kMomentBlock - 128;
    const std::int64_t most = scale == 242 ? 90 : 127;
    arrays.moments[0].set(i, static_cast<std::int8_t>(std::clamp(code, -most, most)));
    arrays.scales[0].set(i / kMomentBlock, static_cast<std::uint8_t>(scale));
  }
  const OptimizerArrays before = arrays;
  for (kept.params.step = 1; kept.params.step <= 20; ++kept.params.step) optimizer_update(arrays.tile(), kept.params);
  EXPECT_TRUE(arrays.moments[0].same(before.moments[0]));
  EXPECT_TRUE(arrays.scales[0].same(before.scales[0]));
}

// All codes under all scales, with the largest magnitude of the block just in the upper half, or the largest there is.
TEST(EncodeMoments, GivesBackTheBytesThatWereDecoded) {
  for (const MomentLaw law : kLaws) {
    const int most = largest_code(law);
    const int upper = law == MomentLaw::square ? 90 : 215;
    const int top = law == MomentLaw::square ? 242 : 224;
    for (int scale = 1; scale <= top; ++scale) {
      for (const int largest : {upper, most}) {
        if (scale == top && largest != upper) continue;  // not finite
        std::vector<std::uint8_t> codes(kMomentBlock), again(kMomentBlock);
        for (int i = 0; i < static_cast<int>(kMomentBlock); ++i) {
          codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(law == MomentLaw::square ? std::clamp(i - 128, -largest, largest) : std::min(i, largest));
        }
        std::vector<float> values(kMomentBlock);
        const auto scale_byte = static_cast<std::uint8_t>(scale);
        std::uint8_t scale_again = 0;
        decode_moments(MomentFormat::block8, law, codes.data(), &scale_byte, values);
        encode_moments(MomentFormat::block8, law, values, again.data(), &scale_again);
        ASSERT_EQ(scale_again, scale_byte) << "largest code " << largest;
        ASSERT_EQ(again, codes) << "scale " << scale << " largest code " << largest;
      }
    }
  }
}

TEST(EncodeMoments, GivesBackEveryBf16AndEveryF32) {
  std::vector<std::uint16_t> all(1 << 16), again(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> values(all.size());
  decode_moments(MomentFormat::bf16, MomentLaw::square, all.data(), nullptr, values);
  encode_moments(MomentFormat::bf16, MomentLaw::square, values, again.data(), nullptr);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(std::isnan(values[i]) || again[i] == all[i]) << "bits " << i;
  }
  std::vector<float> copy(values.size()), back(values.size());
  encode_moments(MomentFormat::f32, MomentLaw::square, values, copy.data(), nullptr);
  decode_moments(MomentFormat::f32, MomentLaw::square, copy.data(), nullptr, back);
  EXPECT_EQ(std::memcmp(back.data(), values.data(), values.size() * sizeof(float)), 0);
}

TEST(EncodeMoments, RoundsToTheNearest) {
  for (const MomentLaw law : kLaws) {
    std::vector<float> values(kMomentBlock, 0.0f), decoded(kMomentBlock);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::pow(static_cast<float>(i + 1) / 256.0f, 3.0f) * 7.0f;
    std::vector<std::uint8_t> codes(kMomentBlock);
    std::uint8_t scale = 0;
    encode_moments(MomentFormat::block8, law, values, codes.data(), &scale);
    decode_moments(MomentFormat::block8, law, codes.data(), &scale, decoded);
    const double s = std::ldexp(1.0, scale - 127);
    for (std::size_t i = 0; i < values.size(); ++i) {
      double nearest = 1e30;
      for (int code = law == MomentLaw::square ? 0 : 1; code <= largest_code(law); ++code) {
        nearest = std::min(nearest, std::fabs(code_value(law, code) * s - static_cast<double>(values[i])));
      }
      EXPECT_NEAR(std::fabs(static_cast<double>(decoded[i]) - static_cast<double>(values[i])), nearest, nearest * 1e-6) << "element " << i;
    }
  }
}

TEST(EncodeMoments, MarksABlockThatIsNotFiniteAndOneOfZeros) {
  for (const MomentLaw law : kLaws) {
    std::vector<float> values(3 * kMomentBlock, 1.0f), decoded(values.size());
    values[3] = std::numeric_limits<float>::infinity();
    std::fill(values.begin() + kMomentBlock, values.begin() + 2 * kMomentBlock, 0.0f);
    values[2 * kMomentBlock] = std::numeric_limits<float>::quiet_NaN();
    std::vector<std::uint8_t> codes(values.size()), scales(3);
    encode_moments(MomentFormat::block8, law, values, codes.data(), scales.data());
    decode_moments(MomentFormat::block8, law, codes.data(), scales.data(), decoded);
    EXPECT_EQ(scales, (std::vector<std::uint8_t>{255, 0, 255}));
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      EXPECT_TRUE(i / kMomentBlock == 1 ? decoded[i] == 0.0f : std::isnan(decoded[i])) << "element " << i;
    }
  }
}

// The mean of many roundings of one value, which lies a third of the way between two representable ones, against it. In
// units of the distance between those, the standard deviation of the mean is 0.5 / sqrt(n).
TEST(StochasticRounding, ErrsInNeitherDirection) {
  constexpr std::int64_t n = 1 << 20;
  for (const MomentFormat format : {MomentFormat::bf16, MomentFormat::block8}) {
    for (const OptimizerKind kind : {OptimizerKind::sgd_momentum, OptimizerKind::adagrad}) {
      OptimizerArrays arrays({kind, format, DType::f32, std::nullopt, false}, n, 0);
      const bool squares = kind == OptimizerKind::adagrad;
      const MomentLaw law = arrays.variant.law(0);
      const int code = 40;
      const double below = format == MomentFormat::bf16 ? 1.0 : code_value(law, code);
      const double above = format == MomentFormat::bf16 ? 1.0 + 0x1p-7 : code_value(law, code + 1);
      const double value = below + (above - below) / 3;
      for (std::int64_t i = 0; i < n; ++i) {
        // The largest of each block fixes the scale at 1.
        const bool largest = format == MomentFormat::block8 && i % kMomentBlock == 0;
        const double x = largest ? code_value(law, largest_code(law)) : value;
        arrays.set_gradient(i, static_cast<float>(squares ? std::sqrt(x) : x));
      }
      OptimizerParams p;
      p.kind = kind;
      p.momentum = 0.9;
      p.seed = 5;
      optimizer_update(arrays.tile(), p);
      const std::vector<float> rounded = arrays.moments_at(0);
      double sum = 0;
      std::int64_t count = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        if (format == MomentFormat::block8 && i % kMomentBlock == 0) continue;
        const double x = static_cast<double>(rounded[static_cast<std::size_t>(i)]);
        ASSERT_TRUE(x == below || x == above) << x;
        sum += (x - value) / (above - below);
        ++count;
      }
      EXPECT_LT(std::fabs(sum / static_cast<double>(count)), 4 * 0.5 / std::sqrt(static_cast<double>(count)))
          << arrays.variant.name();
    }
  }
}

// Neighbours, steps, seeds and moments are rounded independently of each other.
TEST(StochasticRounding, IsNotCorrelated) {
  constexpr std::uint32_t n = 1 << 20;
  const auto bits = [](std::uint64_t seed, std::int64_t step, std::uint64_t position) {
    return rounding_bits(rounding_keys(seed, step, position), static_cast<std::uint32_t>(position));
  };
  double neighbours = 0, steps = 0, seeds = 0, halves = 0, distant = 0;
  const auto centred = [](std::uint32_t x) { return (static_cast<double>(x & 0xffffu) - 32767.5) / 65536.0; };
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::uint32_t x = bits(1, 1, i);
    neighbours += centred(x) * centred(bits(1, 1, i + 1));
    steps += centred(x) * centred(bits(1, 2, i));
    seeds += centred(x) * centred(bits(2, 1, i));
    halves += centred(x) * centred(x >> 16);
    distant += centred(x) * centred(bits(1, 1, i + (std::uint64_t{1} << 32)));
  }
  // The product of two independent ones has a standard deviation of 1/12.
  const double bound = 4.0 / 12.0 * std::sqrt(static_cast<double>(n));
  for (const double sum : {neighbours, steps, seeds, halves, distant}) EXPECT_LT(std::fabs(sum), bound);
}

}  // namespace
}  // namespace spillway
