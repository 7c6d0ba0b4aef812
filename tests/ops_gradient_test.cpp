// Accumulation, rounding to the wire dtype and square sums.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "spillway/device.h"
#include "spillway/ops.h"
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
      finalize_gradient_on_host({accumulated.data(), out.data(), sums.data(), w.wire, w.out, n});
      std::vector<float> expected;
      for (const float v : accumulated.values()) expected.push_back(rounded(v, w.wire));
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(load(out, w.out, i), expected[i]) << i << " of " << n;
      for (std::int64_t piece = 0; piece < norm_pieces(n); ++piece) {
        const std::int64_t begin = piece * kNormPiece, end = std::min(n, begin + kNormPiece);
        ASSERT_EQ(sums[piece], square_sum_by_definition(expected, begin, end)) << "piece " << piece << " of " << n;
      }
      EXPECT_TRUE(out.guards_intact() && sums.guards_intact()) << n;
    }
}

TEST(FinalizeGradient, MayRoundInPlace) {
  const std::int64_t n = kNormPiece + 33;
  for (const DType wire : {DType::f32, DType::bf16, DType::f16}) {
    GuardedArray<float> gradient(normal_values<float>(n, 3.0, 1));
    const std::vector<float> before = gradient.values();
    GuardedArray<double> sums(norm_pieces(n));
    finalize_gradient_on_host({gradient.data(), gradient.data(), sums.data(), wire, DType::f32, n});
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(gradient[i], rounded(before[i], wire));
  }
}

TEST(FinalizeGradient, NonFiniteValuesShowInTheirPieceAlone) {
  const std::int64_t n = 3 * kNormPiece;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::nanf(""), 70000.0f}) {  // the last overflows f16
    for (const std::int64_t at : {kNormPiece, kNormPiece + 31, 2 * kNormPiece - 1}) {
      std::vector<float> values(n, 1.0f);
      values[at] = bad;
      GuardedArray<f16> out(n);
      GuardedArray<double> sums(3);
      finalize_gradient_on_host({values.data(), out.data(), sums.data(), DType::f16, DType::f16, n});
      EXPECT_EQ(sums[0], kNormPiece);
      EXPECT_FALSE(std::isfinite(sums[1])) << bad << " at " << at;
      EXPECT_EQ(sums[2], kNormPiece);
    }
  }
}

TEST(FinalizeGradient, SquaresOfTheLargestFloatsStayFinite) {
  std::vector<float> values(kNormPiece, std::numeric_limits<float>::max());
  GuardedArray<double> sums(1);
  finalize_gradient_on_host({values.data(), values.data(), sums.data(), DType::f32, DType::f32, kNormPiece});
  EXPECT_TRUE(std::isfinite(sums[0]));
}

TEST(Accumulate, AddsElementByElement) {
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{4097}, std::int64_t{40001}}) {
    GuardedArray<float> sum(normal_values<float>(n, 1.0, 1)), gradient(normal_values<float>(n, 1.0, 2));
    const std::vector<float> before = sum.values();
    accumulate_on_host(sum.data(), gradient.data(), n);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], before[i] + gradient[i]);
    EXPECT_TRUE(sum.guards_intact());
  }
}

TEST(FinalizeGradient, DoesNotDependOnTheNumberOfThreads) {
  const std::int64_t n = 50 * kNormPiece + 5;
  const std::vector<float> values = normal_values<float>(n, 1.0, 3);
  expect_same_bits_for_any_thread_count([&] {
    GuardedArray<float> accumulated(values);
    accumulate_on_host(accumulated.data(), values.data(), n);
    GuardedArray<bf16> out(n);
    GuardedArray<double> sums(norm_pieces(n));
    finalize_gradient_on_host({accumulated.data(), out.data(), sums.data(), DType::bf16, DType::bf16, n});
    std::vector<std::byte> bytes;
    append_bytes(bytes, out);
    append_bytes(bytes, sums);
    return bytes;
  });
}

// Between ranks: what leaves is rounded once, what arrives is added in f32, in the order of ranks.
TEST(SumPieces, AddsInTheOrderOfRanksAndThenToWhatIsThere) {
  const std::unique_ptr<Device> device = make_host_device({});
  const std::unique_ptr<Stream> stream = device->make_stream("test");
  const std::unique_ptr<Ops> ops = device->make_ops(DType::bf16);
  for (const std::int64_t n : kSizes)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const std::int64_t ranks : {1, 2, 5})
        for (const bool add : {false, true}) {
          GuardedBytes pieces(ranks * n * size_of(dtype));
          GuardedArray<float> out(normal_values<float>(n, 1.0, 9));
          std::vector<float> expected = out.values(), sum(static_cast<std::size_t>(n));
          for (std::int64_t r = 0; r < ranks; ++r) {
            const std::vector<float> values = normal_values<float>(n, 1.0, static_cast<std::uint64_t>(10 + r));
            ops->round(*stream, values.data(), pieces.data() + r * n * size_of(dtype), dtype, n);
            stream->synchronize();
            for (std::int64_t i = 0; i < n; ++i) {
              const float value = rounded(values[static_cast<std::size_t>(i)], dtype);
              sum[static_cast<std::size_t>(i)] = r == 0 ? value : sum[static_cast<std::size_t>(i)] + value;
            }
          }
          ops->sum_pieces(*stream, {pieces.data(), dtype, ranks, n, out.data(), add});
          stream->synchronize();
          for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(out.data()[i], add ? expected[i] + sum[i] : sum[i]) << i << " of " << n << ", " << ranks << " ranks";
        }
}

}  // namespace
}  // namespace spillway
