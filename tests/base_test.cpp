#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/parallel.h"
#include "base/text.h"
#include "spillway/dtype.h"

namespace spillway {
namespace {

// The nearest f16 by definition, ties to even, from exact double arithmetic.
std::uint16_t nearest_f16(float x) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double a = std::fabs(static_cast<double>(x));
  if (a >= 65520.0) return sign | 0x7c00;
  const int exponent = a == 0.0 ? -14 : std::max(-14, std::ilogb(a));
  const double unit = std::ldexp(1.0, exponent - 10);
  const double steps = std::nearbyint(a / unit);  // exact quotient; the default mode is ties to even
  const double value = steps * unit;
  if (value < 0x1p-14) return sign | static_cast<std::uint16_t>(value / 0x1p-24);
  const int e = std::ilogb(value);
  return sign | static_cast<std::uint16_t>(((e + 15) << 10) | (static_cast<int>(value / std::ldexp(1.0, e - 10)) - 1024));
}

TEST(DType, HalfToFloatIsExactForAllValues) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    const float value = to_float(f16{static_cast<std::uint16_t>(bits)});
    if (exponent == 31) {
      EXPECT_EQ(fraction != 0, std::isnan(value));
      if (fraction == 0) {
        EXPECT_EQ(value, static_cast<float>(sign * HUGE_VAL));
      }
      continue;
    }
    const double expected = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    EXPECT_EQ(static_cast<double>(value), sign * expected) << bits;
    EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0);
  }
}

TEST(DType, FloatToHalfRoundsToNearestEvenAtEveryBoundary) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float low = to_float(f16{static_cast<std::uint16_t>(bits)});
    const float high = bits + 1 == 0x7c00 ? 65536.0f : to_float(f16{static_cast<std::uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;
    for (const float x : {low, std::nextafter(low, high), std::nextafter(middle, low), middle, std::nextafter(middle, high)}) {
      EXPECT_EQ(from_float<f16>(x).bits, nearest_f16(x)) << x;
      EXPECT_EQ(from_float<f16>(-x).bits, nearest_f16(-x)) << x;
    }
  }
  EXPECT_EQ(from_float<f16>(HUGE_VALF).bits, 0x7c00);
  EXPECT_TRUE(std::isnan(round_to<f16>(NAN)));
}

TEST(DType, FloatToBfloatRoundsToNearestEvenAtEveryBoundary) {
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const std::uint32_t low = bits << 16;
    for (const auto& [u, expected] : {std::pair{low, bits}, {low + 0x7fff, bits}, {low + 0x8000, bits + (bits & 1)}, {low + 0x8001, bits + 1}}) {
      EXPECT_EQ(from_float<bf16>(std::bit_cast<float>(u)).bits, expected);
      EXPECT_EQ(from_float<bf16>(-std::bit_cast<float>(u)).bits, expected | 0x8000);
    }
  }
  EXPECT_TRUE(std::isnan(round_to<bf16>(std::bit_cast<float>(0x7fffffffu))));
  EXPECT_TRUE(std::isnan(round_to<bf16>(std::bit_cast<float>(0x7f800001u))));
}

TEST(Parallel, CallsEveryPieceOnceFromSeveralCallers) {
  set_parallel_threads(4);
  for (const std::int64_t pieces : {0, 1, 2, 3, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(pieces));
    parallel_for(pieces, [&](std::int64_t piece) { ++calls[static_cast<std::size_t>(piece)]; });
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
  set_parallel_threads(0);
}

TEST(Parallel, RethrowsOnTheCaller) {
  EXPECT_THROW(parallel_for(8, [](std::int64_t piece) { if (piece == 5) throw std::runtime_error("piece 5"); }), std::runtime_error);
}

TEST(Hash, DoesNotDependOnHowTheDataIsCut) {
  std::vector<std::byte> data(10007);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>((i * 31) >> 3);
  Hasher whole, parts;
  whole.add(std::span(data));
  parts.add(std::span(data).first(4099));
  parts.add(std::span(data).subspan(4099));
  EXPECT_EQ(whole.value(), parts.value());
  EXPECT_EQ(whole.value(), hash_bytes(data));
  EXPECT_EQ(hex64(0xabcULL), "0000000000000abc");
}

TEST(Hash, OfATensorIsTheSumOfItsPartsWhoeverTakesThem) {
  std::vector<std::uint32_t> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint32_t>(i * 2654435761u);
  const std::uint64_t key = hash_key("h.0.weight", "master");
  const std::span<const std::uint32_t> all(values);
  const std::uint64_t whole = element_hash(key, 0, all);
  EXPECT_EQ(whole, element_hash(key, 613, all.subspan(613)) + element_hash(key, 0, all.first(613)));
  std::swap(values[3], values[700]);
  EXPECT_NE(whole, element_hash(key, 0, all)) << "two elements swapped";
  std::swap(values[3], values[700]);
  values[999] ^= 1;
  EXPECT_NE(whole, element_hash(key, 0, all)) << "one bit";
  values[999] ^= 1;
  EXPECT_NE(whole, element_hash(hash_key("h.0.weight", "exp_avg"), 0, all));
  EXPECT_NE(hash_key("ab", "c"), hash_key("a", "bc"));
}

template <class T>
void expect_changes_are_told_apart() {
  std::vector<T> values(131);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i * 2654435761u);
  const std::span<const T> all(values);
  std::set<std::uint64_t> seen = {element_hash(7, 1000, all)};
  std::size_t changes = 1;
  const auto expect_new = [&](T& element, T value) {
    const T before = std::exchange(element, value);
    ++changes;
    seen.insert(element_hash(7, 1000, all));
    element = before;
  };
  for (T& element : values) {
    for (unsigned bit = 0; bit < sizeof(T) * 8; ++bit) expect_new(element, static_cast<T>(element ^ (T{1} << bit)));
  }
  // Signs of two elements: the change that touches the fewest bits of a multiplier.
  constexpr auto sign = static_cast<T>(T{1} << (sizeof(T) * 8 - 1));
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    values[i] ^= sign;
    for (std::size_t j = i + 1; j < values.size(); ++j) expect_new(values[j], static_cast<T>(values[j] ^ sign));
    values[i] ^= sign;
  }
  EXPECT_EQ(seen.size(), changes);
}

TEST(Hash, OfATensorTellsEveryBitAndEveryPairOfSignsApart) {
  expect_changes_are_told_apart<std::uint32_t>();
  expect_changes_are_told_apart<std::uint16_t>();
}

TEST(Hash, OfATensorIsSpreadOverAllBits) {
  // Bits of a fair coin, 4,000 times: 8 standard deviations are 253.
  constexpr int kTensors = 4000;
  std::array<int, 64> ones{};
  for (std::uint32_t i = 0; i < kTensors; ++i) {
    const std::uint32_t value = i;
    const std::uint64_t hash = element_hash(hash_key("w", "master"), i, std::span(&value, 1));
    for (std::size_t bit = 0; bit < 64; ++bit) ones[bit] += static_cast<int>(hash >> bit & 1);
  }
  for (std::size_t bit = 0; bit < 64; ++bit) EXPECT_NEAR(ones[bit], kTensors / 2, 253) << "bit " << bit;
}

TEST(Text, SizesReadWell) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(48 << 20), "48.0 MiB");
  EXPECT_EQ(human_count(1'557'611'200), "1.56 B");
}

TEST(Text, FindsTheMeantName) {
  const std::string_view names[] = {"gradient_clipping", "train_batch_size", "fp16"};
  EXPECT_EQ(closest_match("gradient_cliping", names), "gradient_clipping");
  EXPECT_EQ(closest_match("fp61", names), "fp16");
  EXPECT_EQ(closest_match("scheduler", names), "");
}

}  // namespace
}  // namespace spillway
