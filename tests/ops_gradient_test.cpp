// Accumulation, rounding to the wire dtype and square sums.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "support/op_check.h"

namespace spillway {
namespace {

using namespace test;

constexpr std::int64_t kSizes[] = {1, 31, 32, 33, kNormPiece - 1, kNormPiece, kNormPiece + 1, 5 * kNormPiece + 777};

float rounded(float x, DType wire) {
  return wire == DType::f32 ? x : wire == DType::bf16 ? round_to<bf16>(x) : round_to<f16>(x);
}

float load(GuardedBytes& bytes, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::f32: return reinterpret_cast<float*>(bytes.data())[i];
    case DType::bf16: return to_float(reinterpret_cast<bf16*>(bytes.data())[i]);
    case DType::f16: return to_float(reinterpret_cast<f16*>(bytes.data())[i]);
  }
  return 0;
}

// The order that gradient.cpp promises, written as its text reads.
double square_sum_by_definition(const std::vector<float>& values, std::int64_t begin, std::int64_t end) {
  double lanes[32] = {};
  for (std::int64_t i = begin; i < end; ++i) {
    const double v = values[i];
    lanes[(i - begin) % 32] += v * v;
  }
  for (const int width : {16, 8, 4, 2, 1})
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

void finalize(GuardedArray<float>& accumulated, GuardedBytes& out, GuardedArray<double>& sums, DType wire, DType out_dtype) {
  run_ops(DType::bf16, [&](Ops& ops, Stream& s, OpMemory& on) {
    ops.finalize_gradient(s, {on(accumulated), on(out), on(sums), wire, out_dtype, static_cast<std::int64_t>(accumulated.size())});
  });
}

void accumulate(GuardedArray<float>& accumulator, GuardedArray<float>& gradient) {
  run_ops(DType::bf16, [&](Ops& ops, Stream& s, OpMemory& on) {
    ops.accumulate(s, on(accumulator), on(gradient), static_cast<std::int64_t>(accumulator.size()));
  });
}

struct Wire {
  DType wire, out;
};
constexpr Wire kWires[] = {{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f16, DType::f16}, {DType::f16, DType::f32}};

TEST(FinalizeGradient, RoundsAndSumsSquaresInTheDocumentedOrder) {
  for (const std::int64_t n : kSizes)
    for (const Wire& w : kWires) {
      GuardedArray<float> accumulated(normal_values<float>(n, 3.0, 1));
      GuardedBytes out(n * size_of(w.out));
      GuardedArray<double> sums(norm_pieces(n));
      finalize(accumulated, out, sums, w.wire, w.out);
      std::vector<float> expected;
      for (const float v : accumulated.values()) expected.push_back(rounded(v, w.wire));
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(load(out, w.out, i), expected[i]) << i << " of " << n;
      for (std::int64_t piece = 0; piece < norm_pieces(n); ++piece) {
        const std::int64_t begin = piece * kNormPiece, end = std::min(n, begin + kNormPiece);
        ASSERT_EQ(sums[piece], square_sum_by_definition(expected, begin, end)) << "piece " << piece << " of " << n;
      }
    }
}

TEST(FinalizeGradient, MayRoundInPlace) {
  const std::int64_t n = kNormPiece + 33;
  for (const DType wire : {DType::f32, DType::bf16, DType::f16}) {
    GuardedArray<float> gradient(normal_values<float>(n, 3.0, 1));
    const std::vector<float> before = gradient.values();
    GuardedArray<double> sums(norm_pieces(n));
    finalize(gradient, gradient.bytes(), sums, wire, DType::f32);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(gradient[i], rounded(before[i], wire));
  }
}

TEST(FinalizeGradient, NonFiniteValuesShowInTheirPieceAlone) {
  const std::int64_t n = 3 * kNormPiece;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::nanf(""), 70000.0f}) {  // the last overflows f16
    for (const std::int64_t at : {kNormPiece, kNormPiece + 31, 2 * kNormPiece - 1}) {
      GuardedArray<float> values(std::vector<float>(n, 1.0f));
      values[at] = bad;
      GuardedArray<f16> out(n);
      GuardedArray<double> sums(3);
      finalize(values, out.bytes(), sums, DType::f16, DType::f16);
      EXPECT_EQ(sums[0], kNormPiece);
      EXPECT_FALSE(std::isfinite(sums[1])) << bad << " at " << at;
      EXPECT_EQ(sums[2], kNormPiece);
    }
  }
}

TEST(FinalizeGradient, SquaresOfTheLargestFloatsStayFinite) {
  GuardedArray<float> values(std::vector<float>(kNormPiece, std::numeric_limits<float>::max()));
  GuardedArray<double> sums(1);
  finalize(values, values.bytes(), sums, DType::f32, DType::f32);
  EXPECT_TRUE(std::isfinite(sums[0]));
}

TEST(Accumulate, AddsElementByElement) {
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{4097}, std::int64_t{40001}}) {
    GuardedArray<float> sum(normal_values<float>(n, 1.0, 1)), gradient(normal_values<float>(n, 1.0, 2));
    const std::vector<float> before = sum.values();
    accumulate(sum, gradient);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], before[i] + gradient[i]);
  }
}

TEST(FinalizeGradient, DoesNotDependOnTheNumberOfThreads) {
  const std::int64_t n = 50 * kNormPiece + 5;
  GuardedArray<float> values(normal_values<float>(n, 1.0, 3));
  expect_same_bits_for_any_thread_count([&] {
    GuardedArray<float> accumulated(values.values());
    accumulate(accumulated, values);
    GuardedArray<bf16> out(n);
    GuardedArray<double> sums(norm_pieces(n));
    finalize(accumulated, out.bytes(), sums, DType::bf16, DType::bf16);
    std::vector<std::byte> bytes;
    append_bytes(bytes, out);
    append_bytes(bytes, sums);
    return bytes;
  });
}

// Between ranks: what leaves is rounded once, what arrives is added in f32, in the order of ranks.
TEST(SumPieces, AddsInTheOrderOfRanksAndThenToWhatIsThere) {
  for (const std::int64_t n : kSizes)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const std::int64_t ranks : {1, 2, 5})
        for (const bool add : {false, true}) {
          GuardedBytes pieces(ranks * n * size_of(dtype));
          GuardedArray<float> out(normal_values<float>(n, 1.0, 9));
          std::vector<float> expected = out.values(), sum(n);
          GuardedArray<float> values(ranks * n);
          for (std::int64_t r = 0; r < ranks; ++r) {
            std::ranges::copy(normal_values<float>(n, 1.0, static_cast<std::uint32_t>(10 + r)), values.data() + r * n);
            for (std::int64_t i = 0; i < n; ++i) {
              const float value = rounded(values[r * n + i], dtype);
              sum[i] = r == 0 ? value : sum[i] + value;
            }
          }
          run_ops(DType::bf16, [&](Ops& ops, Stream& s, OpMemory& on) {
            ops.round(s, on(values), on(pieces), dtype, ranks * n);
            ops.sum_pieces(s, {on(pieces), dtype, ranks, n, on(out), add});
          });
          for (std::int64_t i = 0; i < n; ++i)
            ASSERT_EQ(out[i], add ? expected[i] + sum[i] : sum[i]) << i << " of " << n << ", " << ranks << " ranks";
        }
}

}  // namespace
}  // namespace spillway
