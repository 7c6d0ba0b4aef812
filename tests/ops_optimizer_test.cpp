// The optimizers' update on every device: the bits of optimizer_update(), of all it leaves. Only the payload of a NaN is
// nobody's promise.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/values.h"
#include "support/op_check.h"
#include "support/optimizer_arrays.h"

namespace spillway {
namespace {

using namespace test;

constexpr MomentFormat kFormats[] = {MomentFormat::f32, MomentFormat::bf16, MomentFormat::block8};
constexpr std::int64_t kFirst[] = {0, 1};  // element that arrays start at: the second one is no multiple of 16 bytes
constexpr std::int64_t kBlocks = 9;
constexpr std::int64_t kShort = 77;  // of the last block

// Of every order of magnitude, a block of one: gradients and first moments of that scale, second ones of its square. Two
// blocks get a gradient that no arithmetic can mend.
void fill(OptimizerArrays& arrays) {
  constexpr float kScales[kBlocks] = {1.0f, 0.0f, 1e-4f, 1e-20f, 1e-42f, 1e15f, 1e38f, 1.0f, 1.0f};
  constexpr std::int64_t kPeriod = kBlocks * kMomentBlock + 1;  // drawn once, since tests of millions of elements only need some
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> drawn(kPeriod);
  for (float& value : drawn) value = normal(random);
  const auto value_at = [&](std::int64_t i, std::int64_t array) { return drawn[static_cast<std::size_t>((i + 100 * array) % kPeriod)]; };
  const auto scale_at = [&](std::int64_t i) { return kScales[i / kMomentBlock % kBlocks]; };
  for (std::int64_t i = 0; i < arrays.n; ++i) {
    arrays.set_master(i, value_at(i, 0));
    arrays.set_gradient(i, value_at(i, 1) * scale_at(i));
  }
  for (std::size_t m = 0; m < arrays.moments.size(); ++m) {
    std::vector<float> values(static_cast<std::size_t>(arrays.n));
    for (std::int64_t i = 0; i < arrays.n; ++i) {
      const float x = value_at(i, 2 + static_cast<std::int64_t>(m)) * scale_at(i);
      values[static_cast<std::size_t>(i)] = arrays.variant.law(m) == MomentLaw::fourth_power ? std::min(x * x, 3e38f) : std::clamp(x, -3e38f, 3e38f);
    }
    arrays.set_moments(m, values);
  }
  if (arrays.n > 7 * kMomentBlock + 100) {
    arrays.set_gradient(7 * kMomentBlock + 3, std::numeric_limits<float>::infinity());
    arrays.set_gradient(7 * kMomentBlock + 100, std::numeric_limits<float>::quiet_NaN());
  }
}

// Arrays on the device under test, each behind `first` other elements.
class DeviceArrays {
 public:
  DeviceArrays(const OptimizerArrays& from, std::int64_t first)
      : first_(first), variant_(from.variant), master_(copy_of(from.master, 4)), gradient_(copy_of(from.gradient, size_of(variant_.gradient))),
        weight_(copy_of(from.weight, weight_width())) {
    for (const OffsetBytes& moment : from.moments) moments_.push_back(copy_of(moment, moment_width()));
    for (const OffsetBytes& scale : from.scales) scales_.push_back(copy_of(scale, 1));
  }

  OptimizerTile tile(OpMemory& on, OptimizerTile tile) {
    tile.master = reinterpret_cast<float*>(on(master_)) + first_;
    tile.gradient = on(gradient_) + first_ * size_of(variant_.gradient);
    if (variant_.weight) tile.weight = on(weight_) + first_ * weight_width();
    for (std::size_t m = 0; m < moments_.size(); ++m) {
      tile.moments[m] = on(moments_[m]) + first_ * moment_width();
      if (variant_.moments == MomentFormat::block8) tile.scales[m] = reinterpret_cast<std::uint8_t*>(on(scales_[m])) + first_;
    }
    return tile;
  }

  void expect_same(const OptimizerArrays& expected, const std::string& what) {
    const DType moment_dtype = variant_.moments == MomentFormat::bf16 ? DType::bf16 : DType::f32;
    expect_same_values(master_, expected.master, DType::f32, what + ", master");
    if (variant_.weight) expect_same_values(weight_, expected.weight, *variant_.weight, what + ", weight");
    for (std::size_t m = 0; m < moments_.size(); ++m) {
      const std::string moment = what + ", moment " + std::to_string(m);
      if (variant_.moments != MomentFormat::block8) {
        expect_same_values(moments_[m], expected.moments[m], moment_dtype, moment);
      } else {
        expect_same_bytes(scales_[m], expected.scales[m], moment + ", scale");
        expect_same_bytes(moments_[m], expected.moments[m], moment + ", code");
      }
    }
  }

 private:
  std::int64_t weight_width() const { return variant_.weight ? size_of(*variant_.weight) : 1; }
  std::int64_t moment_width() const { return variant_.moments == MomentFormat::f32 ? 4 : variant_.moments == MomentFormat::bf16 ? 2 : 1; }

  GuardedBytes copy_of(const OffsetBytes& from, std::int64_t width) const {
    GuardedBytes bytes(static_cast<std::size_t>(first_ * width) + from.size());
    if (from.size() > 0) std::memcpy(bytes.data() + first_ * width, from.data(), from.size());
    return bytes;
  }

  void expect_same_values(GuardedBytes& got, const OffsetBytes& expected, DType dtype, const std::string& what) {
    const auto values_of = [dtype](std::span<const std::byte> bytes) {
      std::vector<float> values(bytes.size() / static_cast<std::size_t>(size_of(dtype)));
      widen(dtype, bytes, values);
      return values;
    };
    const std::vector<float> a = values_of(got.span().subspan(static_cast<std::size_t>(first_ * size_of(dtype))));
    const std::vector<float> b = values_of({reinterpret_cast<const std::byte*>(expected.data()), expected.size()});
    ASSERT_EQ(a.size(), b.size()) << what;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::isnan(a[i]) && std::isnan(b[i])) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i]), std::bit_cast<std::uint32_t>(b[i])) << what << " " << i << ": " << a[i] << ", expected " << b[i];
    }
    for (const std::byte before : got.span().first(static_cast<std::size_t>(first_ * size_of(dtype)))) ASSERT_EQ(before, std::byte{0xff}) << what;
  }

  void expect_same_bytes(GuardedBytes& got, const OffsetBytes& expected, const std::string& what) {
    ASSERT_EQ(got.span().size(), static_cast<std::size_t>(first_) + expected.size()) << what;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(std::to_integer<int>(got.data()[static_cast<std::size_t>(first_) + i]), int{expected.data()[i]}) << what << " " << i;
    }
    for (const std::byte before : got.span().first(static_cast<std::size_t>(first_))) ASSERT_EQ(before, std::byte{0xff}) << what;
  }

  std::int64_t first_;
  OptimizerVariant variant_;
  GuardedBytes master_, gradient_, weight_;
  std::vector<GuardedBytes> moments_, scales_;
};

struct Case {
  OptimizerVariant variant;
  std::int64_t n = (kBlocks - 1) * kMomentBlock + kShort;
  std::int64_t first = 0;
  std::uint64_t position = 3 * kMomentBlock;
};

void expect_same_update(const Case& c, const OptimizerParams& params) {
  OptimizerArrays expected(c.variant, c.n, 0);
  fill(expected);
  DeviceArrays got(expected, c.first);
  OptimizerTile tile = expected.tile();
  tile.position = c.position;
  optimizer_update(tile, params);
  run_ops<float>([&](Ops& ops, Stream& s, OpMemory& on) { ops.optimizer_update(s, got.tile(on, tile), params); });
  got.expect_same(expected, c.variant.name() + ", " + std::to_string(c.n) + " elements from the one at " + std::to_string(c.first));
}

void expect_same_updates(OptimizerKind kind) {
  for (const MomentFormat format : kFormats) {
    if (!exists(kind, format)) continue;
    for (const OptimizerVariant& variant : variants_of(kind, format)) {
      if (variant.split) continue;
      for (const std::int64_t first : kFirst) expect_same_update({.variant = variant, .first = first}, lively_params(kind, 3));
    }
  }
}

TEST(OpsOptimizer, AdamOfEveryFormatDTypeAndAlignment) { expect_same_updates(OptimizerKind::adam); }
TEST(OpsOptimizer, AdagradOfEveryFormatDTypeAndAlignment) { expect_same_updates(OptimizerKind::adagrad); }
TEST(OpsOptimizer, LionOfEveryFormatDTypeAndAlignment) { expect_same_updates(OptimizerKind::lion); }
TEST(OpsOptimizer, SgdOfEveryDTypeAndAlignment) { expect_same_updates(OptimizerKind::sgd); }
TEST(OpsOptimizer, MomentumOfEveryFormatDTypeAndAlignment) { expect_same_updates(OptimizerKind::sgd_momentum); }

TEST(OpsOptimizer, EveryLength) {
  for (const OptimizerKind kind : kAllKinds)
    for (const MomentFormat format : kFormats)
      for (const std::int64_t n : {0, 1, 7, 8, 9, 255, 256, 257, 2049})
        for (const std::int64_t first : kFirst) {
          if (!exists(kind, format)) continue;
          expect_same_update({.variant = {kind, format, DType::bf16, DType::bf16}, .n = n, .first = first}, lively_params(kind, 2));
        }
}

TEST(OpsOptimizer, EveryParameter) {
  for (const OptimizerKind kind : kAllKinds)
    for (const bool decay : {false, true})
      for (const bool other : {false, true})
        for (const std::int64_t step : {1, 20000}) {
          OptimizerParams params = lively_params(kind, step);
          params.weight_decay = decay ? 0.1 : 0.0;
          params.decoupled_decay = params.bias_correction = !other;
          params.nesterov = other;
          params.gradient_scale = 0x1p-16f;
          expect_same_update({.variant = {kind, MomentFormat::f32, DType::bf16, DType::bf16}}, params);
        }
}

// The random bits are those of the position in the model, of which a tile may pass a multiple of 2^32.
TEST(OpsOptimizer, PositionsBeyond32Bits) {
  for (const MomentFormat format : {MomentFormat::bf16, MomentFormat::block8})
    for (const std::uint64_t position : {(std::uint64_t{1} << 32) - 2 * kMomentBlock, (std::uint64_t{5} << 32) + kMomentBlock}) {
      expect_same_update({.variant = {OptimizerKind::adam, format, DType::bf16, DType::bf16}, .position = position},
                         lively_params(OptimizerKind::adam, 3));
    }
}

// On a CUDA device a launch has so many threads and no more: here they take turns.
TEST(OpsOptimizer, MoreThanALaunchTakesAtOnce) {
  expect_same_update({.variant = {OptimizerKind::sgd, MomentFormat::f32, DType::bf16, DType::bf16}, .n = 4'400'001}, lively_params(OptimizerKind::sgd, 2));
  expect_same_update({.variant = {OptimizerKind::lion, MomentFormat::block8, DType::bf16, DType::bf16}, .n = 8'700'001},
                     lively_params(OptimizerKind::lion, 2));
}

}  // namespace
}  // namespace spillway
