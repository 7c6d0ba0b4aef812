// What every device computes bit by bit: the operations that run wherever a gradient or a tile's state happens to be.
// Expected are the bits of the functions for host memory; only the payload of a NaN is nobody's promise.
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/values.h"
#include "host/kernels.h"
#include "spillway/optimizer.h"
#include "support/op_check.h"

namespace spillway {
namespace {

using namespace test;

constexpr std::int64_t kSizes[] = {0, 1, 31, 33, kNormPiece + 1};
constexpr std::int64_t kFirst[] = {0, 1};  // element that arrays start at: the second one is no multiple of 16 bytes
constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

// Of every kind: ordinary, tiny (subnormal in f32 or f16), and any 32 bits, infinities and NaN among them.
std::vector<float> values_of_every_kind(std::int64_t n, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) {
    const std::uint32_t bits = generator();
    switch (bits % 8) {
      case 0: value = std::bit_cast<float>(bits); break;
      case 1: value = std::bit_cast<float>(bits & 0x800fffffu); break;
      case 2: value = normal(generator) * 1e-7f; break;
      case 3: value = std::bit_cast<float>((bits & 0x80000000u) | 0x7f800000u | (bits & 0x100u) << 4); break;
      default: value = normal(generator);
    }
  }
  return values;
}

// The same in the storage of `dtype`.
GuardedBytes stored(const std::vector<float>& values, DType dtype) {
  GuardedBytes bytes(values.size() * static_cast<std::size_t>(size_of(dtype)));
  host::round(values.data(), bytes.data(), dtype, static_cast<std::int64_t>(values.size()));
  return bytes;
}

template <class Value>
void expect_same(std::span<const Value> got, std::span<const Value> expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != got[i] && expected[i] != expected[i]) continue;
    ASSERT_EQ(std::memcmp(&got[i], &expected[i], sizeof(Value)), 0)
        << what << ", element " << i << " of " << got.size() << ": " << got[i] << ", expected " << expected[i];
  }
}

template <class Value>
void expect_same(GuardedArray<Value>& got, GuardedArray<Value>& expected, const std::string& what) {
  expect_same<Value>(std::span<const Value>(got.span()), std::span<const Value>(expected.span()), what);
}

void expect_same(GuardedBytes& got, GuardedBytes& expected, DType dtype, const std::string& what) {
  const auto widened = [dtype](GuardedBytes& bytes) {
    std::vector<float> values(bytes.span().size() / static_cast<std::size_t>(size_of(dtype)));
    widen(dtype, bytes.span(), values);
    return values;
  };
  expect_same<float>(widened(got), widened(expected), what);
}

std::string name(std::string_view what, std::int64_t n, std::int64_t first) {
  return std::string(what) + ", " + std::to_string(n) + " elements from the one at " + std::to_string(first);
}

TEST(BitByBit, Accumulate) {
  for (const std::int64_t first : kFirst)
    for (const std::int64_t n : kSizes) {
      GuardedArray<float> sum(values_of_every_kind(first + n, 1)), gradient(values_of_every_kind(first + n, 2)), expected(sum.values());
      accumulate_on_host(expected.data() + first, gradient.data() + first, n);
      run_ops<float>([&](Ops& ops, Stream& s, OpMemory& on) { ops.accumulate(s, on(sum) + first, on(gradient) + first, n); });
      expect_same(sum, expected, name("sum", n, first));
    }
}

// On a CUDA device a launch has so many threads and no more: here they have to take turns, in vectors and one by one.
TEST(BitByBit, AccumulateMoreThanALaunchTakesAtOnce) {
  for (const auto& [first, n] : {std::pair<std::int64_t, std::int64_t>{0, 4'400'001}, {1, 1'100'001}}) {
    GuardedArray<float> sum(first + n), gradient(first + n);
    for (std::int64_t i = 0; i < first + n; ++i) {
      sum[i] = static_cast<float>(i % 8191);
      gradient[i] = static_cast<float>(i % 127) * 0.25f;
    }
    run_ops<float>([&](Ops& ops, Stream& s, OpMemory& on) { ops.accumulate(s, on(sum) + first, on(gradient) + first, n); });
    for (std::int64_t i = 0; i < first + n; ++i)
      ASSERT_EQ(sum[i], static_cast<float>(i % 8191) + (i < first ? 0.0f : static_cast<float>(i % 127) * 0.25f)) << i << " of " << n;
  }
}

struct FinalizeCase {
  std::int64_t n, first;
  DType wire, out;
};

void expect_same_finalized(const FinalizeCase& c, const std::vector<float>& values) {
  const std::string what = name(name_of(c.wire), c.n, c.first);
  GuardedArray<float> accumulated(values);
  GuardedBytes out((c.first + c.n) * size_of(c.out)), expected((c.first + c.n) * size_of(c.out));
  GuardedArray<double> sums(norm_pieces(c.n)), expected_sums(norm_pieces(c.n));
  const std::int64_t skipped = c.first * size_of(c.out);
  finalize_gradient_on_host({accumulated.data() + c.first, expected.data() + skipped, expected_sums.data(), c.wire, c.out, c.n});
  run_ops<float>([&](Ops& ops, Stream& s, OpMemory& on) {
    ops.finalize_gradient(s, {on(accumulated) + c.first, on(out) + skipped, on(sums), c.wire, c.out, c.n});
  });
  expect_same(out, expected, c.out, what);
  expect_same(sums, expected_sums, "square sums, " + what);
}

TEST(BitByBit, FinalizeGradient) {
  for (const std::int64_t first : kFirst)
    for (const std::int64_t n : kSizes)
      for (const DType wire : kDTypes)
        for (const DType out : {wire, DType::f32}) {
          expect_same_finalized({n, first, wire, out}, values_of_every_kind(first + n, 3));
          expect_same_finalized({n, first, wire, out}, normal_values<float>(first + n, 1.0, 4));  // without NaN, which hides an order
        }
}

TEST(BitByBit, Round) {
  for (const std::int64_t first : kFirst)
    for (const std::int64_t n : kSizes)
      for (const DType dtype : kDTypes) {
        GuardedArray<float> from(values_of_every_kind(first + n, 4));
        GuardedBytes to((first + n) * size_of(dtype)), expected((first + n) * size_of(dtype));
        const std::int64_t skipped = first * size_of(dtype);
        host::round(from.data() + first, expected.data() + skipped, dtype, n);
        run_ops<float>([&](Ops& ops, Stream& s, OpMemory& on) { ops.round(s, on(from) + first, on(to) + skipped, dtype, n); });
        expect_same(to, expected, dtype, name(name_of(dtype), n, first));
      }
}

// Every f32 in the neighbourhood of a tie or of an end of the range, both signs.
TEST(BitByBit, RoundsTiesToEvenAndKeepsSubnormals) {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x8000; upper += 7)
    for (const std::uint32_t lower : {0x0000u, 0x0fffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u})
      for (const std::uint32_t sign : {0u, 0x80000000u}) values.push_back(std::bit_cast<float>(sign | upper << 16 | lower));
  const auto n = static_cast<std::int64_t>(values.size());
  for (const DType dtype : kDTypes) {
    GuardedArray<float> from(values);
    GuardedBytes to(n * size_of(dtype)), expected = stored(values, dtype);
    run_ops<float>([&](Ops& ops, Stream& s, OpMemory& on) { ops.round(s, on(from), on(to), dtype, n); });
    expect_same(to, expected, dtype, std::string(name_of(dtype)));
  }
}

TEST(BitByBit, SumPieces) {
  for (const std::int64_t first : kFirst)
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{31}, std::int64_t{32}, std::int64_t{4097}})
      for (const DType dtype : kDTypes)
        for (const std::int64_t ranks : {1, 3})
          for (const bool add : {false, true}) {
            GuardedBytes pieces = stored(values_of_every_kind(first + ranks * n, 5), dtype);
            GuardedArray<float> out(values_of_every_kind(first + n, 6)), expected(out.values());
            const std::int64_t skipped = first * size_of(dtype);
            host::sum_pieces({pieces.data() + skipped, dtype, ranks, n, expected.data() + first, add});
            run_ops<float>([&](Ops& ops, Stream& s, OpMemory& on) {
              ops.sum_pieces(s, {on(pieces) + skipped, dtype, ranks, n, on(out) + first, add});
            });
            expect_same(out, expected, name(name_of(dtype), n, first) + ", " + std::to_string(ranks) + " ranks");
          }
}

// A tile's arrays; both moments of an update that has run for a while, and some that no update leaves behind.
struct TileArrays {
  TileArrays(std::int64_t n, DType gradient_dtype, DType weight_dtype)
      : master(values_of_every_kind(n, 7)),
        exp_avg(values_of_every_kind(n, 8)),
        exp_avg_sq(values_of_every_kind(n, 9)),
        gradient(stored(values_of_every_kind(n, 10), gradient_dtype)),
        weight(n * size_of(weight_dtype)) {
    for (std::size_t i = 0; i < exp_avg_sq.size(); ++i)
      if (i % 16 != 0) exp_avg_sq[i] = std::fabs(exp_avg_sq[i]);
  }

  GuardedArray<float> master, exp_avg, exp_avg_sq;
  GuardedBytes gradient, weight;
};

struct AdamCase {
  std::int64_t n, first;
  DType gradient, weight;
  bool wants_weight;
};

void expect_same_update(const AdamCase& c, const OptimizerParams& params) {
  const std::string what = name(std::string(name_of(c.gradient)) + " to " + std::string(name_of(c.weight)), c.n, c.first);
  TileArrays expected(c.first + c.n, c.gradient, c.weight), got(c.first + c.n, c.gradient, c.weight);
  const auto tile = [&](float* master, float* exp_avg, float* exp_avg_sq, std::byte* gradient, std::byte* weight) {
    return OptimizerTile{.master = master + c.first,
                         .moments = {exp_avg + c.first, exp_avg_sq + c.first},
                         .gradient = gradient + c.first * size_of(c.gradient),
                         .gradient_dtype = c.gradient,
                         .weight = c.wants_weight ? weight + c.first * size_of(c.weight) : nullptr,
                         .weight_dtype = c.weight,
                         .n = c.n};
  };
  optimizer_update(tile(expected.master.data(), expected.exp_avg.data(), expected.exp_avg_sq.data(), expected.gradient.data(), expected.weight.data()),
              params);
  run_ops<float>([&](Ops& ops, Stream& s, OpMemory& on) {
    ops.optimizer_update(s, tile(on(got.master), on(got.exp_avg), on(got.exp_avg_sq), on(got.gradient), on(got.weight)), params);
  });
  expect_same(got.master, expected.master, "master, " + what);
  expect_same(got.exp_avg, expected.exp_avg, "exp_avg, " + what);
  expect_same(got.exp_avg_sq, expected.exp_avg_sq, "exp_avg_sq, " + what);
  expect_same(got.weight, expected.weight, c.weight, "weight, " + what);
}

constexpr OptimizerParams kAdamW{.weight_decay = 0.1, .step = 3, .gradient_scale = 0.37f};

TEST(BitByBit, AdamOfEveryDTypeAndAlignment) {
  for (const std::int64_t first : kFirst)
    for (const std::int64_t n : kSizes)
      for (const DType gradient : kDTypes)
        for (const DType weight : kDTypes) expect_same_update({n, first, gradient, weight, true}, kAdamW);
}

TEST(BitByBit, AdamOfEveryParameter) {
  const AdamCase c{4097, 0, DType::bf16, DType::bf16, true};
  for (const bool decoupled : {false, true})
    for (const bool correction : {false, true})
      for (const double decay : {0.0, 0.01})
        for (const std::int64_t step : {1, 20000}) {
          OptimizerParams params = kAdamW;
          params.decoupled_decay = decoupled;
          params.bias_correction = correction;
          params.weight_decay = decay;
          params.step = step;
          params.gradient_scale = 0x1p-16f;
          expect_same_update(c, params);
        }
}

TEST(BitByBit, AdamWithoutAWeight) { expect_same_update({33, 0, DType::f16, DType::bf16, false}, kAdamW); }

template <class T>
class BitByBitEmbedding : public testing::Test {};
TYPED_TEST_SUITE(BitByBitEmbedding, StorageTypes);

// No device sums a token's gradients in another order than the batch's.
TYPED_TEST(BitByBitEmbedding, Backward) {
  using T = TypeParam;
  constexpr std::int64_t kBatch = 3, kVocabulary = 40, kPositions = 211;
  struct Shape {
    std::int64_t time, channels;
  };
  for (const auto& [time, channels] : {Shape{200, 7}, Shape{200, 48}, Shape{12, 2056}})
    for (const std::int64_t first : kFirst) {
      std::mt19937 generator(11);
      GuardedArray<std::int32_t> tokens(kBatch * time);
      for (auto& token : tokens.span()) token = static_cast<std::int32_t>(generator() % kVocabulary);
      GuardedArray<T> dout(normal_values<T>(first + kBatch * time * channels, 1.0, 12));
      GuardedArray<float> dtokens(normal_values<float>(kVocabulary * channels, 1.0, 13)), dpositions(kPositions * channels);
      GuardedArray<float> expected_dtokens(dtokens.values()), expected_dpositions(kPositions * channels);
      host::embedding_backward<T>({tokens.data(), dout.data() + first, expected_dtokens.data(), expected_dpositions.data(), kBatch, time,
                                   channels, kVocabulary, kPositions});
      run_ops<T>([&](Ops& ops, Stream& s, OpMemory& on) {
        ops.embedding_backward(s, {on(tokens), on(dout) + first, on(dtokens), on(dpositions), kBatch, time, channels, kVocabulary, kPositions});
      });
      expect_same(dtokens, expected_dtokens, name("token table", channels, first));
      expect_same(dpositions, expected_dpositions, name("position table", channels, first));
    }
}

}  // namespace
}  // namespace spillway
