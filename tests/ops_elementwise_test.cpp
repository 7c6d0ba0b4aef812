// GELU, the exponential beneath it, and the embedding.
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "host/math.h"
#include "support/op_check.h"

namespace spillway {
namespace {

using namespace test;

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

double gelu_slope(double x) {
  const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

// The bound that kernels state for f32; with 16-bit storage a CUDA device's exponential is a fast one.
template <class T>
double gelu_bound(double y) {
  return (on_cuda() && sizeof(T) == 2 ? 0x1p-19 : 0x1p-22) * std::max(std::fabs(y), 0.125);
}

template <class T>
void gelu_forward(GuardedArray<T>& x, GuardedArray<T>& y) {
  run_ops<T>([&](Ops& ops, Stream& s, OpMemory& on) { ops.gelu_forward(s, {on(x), on(y), static_cast<std::int64_t>(x.size())}); });
}

template <class T>
void gelu_backward(GuardedArray<T>& dy, GuardedArray<T>& x, GuardedArray<T>& dx) {
  run_ops<T>([&](Ops& ops, Stream& s, OpMemory& on) { ops.gelu_backward(s, {on(dy), on(x), on(dx), static_cast<std::int64_t>(x.size())}); });
}

TEST(FastExp, IsWithinOneUnitInTheLastPlace) {
  for (const std::uint32_t sign : {0u, 0x80000000u})
    for (std::uint32_t bits = 0; bits <= 0x42d20000u; bits += 641) {
      const float x = std::bit_cast<float>(bits | sign);
      const double exact = std::exp(static_cast<double>(x));
      const float got = host::fast_exp(x);
      if (exact >= 0x1.ffffffp127) {
        ASSERT_EQ(got, std::numeric_limits<float>::infinity()) << x;
        continue;
      }
      const double unit = exact < 0x1p-126 ? 0x1p-149 : std::ldexp(1.0, std::ilogb(exact) - 23);
      ASSERT_LE(std::fabs(got - exact), unit) << x;
    }
}

TEST(FastExp, IsRightAtTheEnds) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(host::fast_exp(-infinity), 0.0f);
  EXPECT_EQ(host::fast_exp(-1e30f), 0.0f);
  EXPECT_EQ(host::fast_exp(0.0f), 1.0f);
  EXPECT_EQ(host::fast_exp(-0.0f), 1.0f);
  EXPECT_EQ(host::fast_exp(infinity), infinity);
  EXPECT_TRUE(std::isnan(host::fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

template <class T>
class GeluTest : public testing::Test {};
TYPED_TEST_SUITE(GeluTest, StorageTypes);

// -12 to 12 in fine steps, more than one piece, an odd count.
template <class T>
GuardedArray<T> gelu_inputs() {
  std::vector<T> x;
  for (int i = -60001; i <= 60001; ++i) x.push_back(from_float<T>(static_cast<float>(i) * 2e-4f));
  return GuardedArray<T>(x);
}

TYPED_TEST(GeluTest, ForwardMatchesFloat64) {
  using T = TypeParam;
  GuardedArray<T> x = gelu_inputs<T>(), y(x.size());
  gelu_forward(x, y);
  Doubles expected, allowed;
  for (const double v : as_double(x.values())) {
    expected.push_back(gelu(v));
    allowed.push_back(gelu_bound<T>(expected.back()));
  }
  expect_within(y, expected, allowed, "gelu");
}

TYPED_TEST(GeluTest, BackwardMatchesFloat64AndMayOverwriteItsInput) {
  using T = TypeParam;
  GuardedArray<T> x = gelu_inputs<T>();
  GuardedArray<T> dy(normal_values<T>(static_cast<std::int64_t>(x.size()), 1.0, 7)), dx(x.size());
  gelu_backward(dy, x, dx);
  Doubles expected, allowed;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double slope = gelu_slope(to_float(x[i])), d = to_float(dy[i]);
    expected.push_back(d * slope);
    allowed.push_back(std::fabs(d) * gelu_bound<T>(slope) * 4);
  }
  expect_within(dx, expected, allowed, "gelu backward");
  gelu_backward(dy, x, dy);
  for (std::size_t i = 0; i < dx.size(); ++i) ASSERT_EQ(to_float(dy[i]), to_float(dx[i])) << i;
}

TYPED_TEST(GeluTest, DoesNotDependOnTheNumberOfThreads) {
  using T = TypeParam;
  GuardedArray<T> x = gelu_inputs<T>();
  expect_same_bits_for_any_thread_count([&] {
    GuardedArray<T> y(x.size()), dx(x.size());
    gelu_forward(x, y);
    gelu_backward(y, x, dx);
    std::vector<std::byte> bytes;
    append_bytes(bytes, y);
    append_bytes(bytes, dx);
    return bytes;
  });
}

TEST(Gelu, ExtremeInputsGiveTheirLimitsAndNaNStaysVisible) {
  constexpr float infinity = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  GuardedArray<float> x(std::vector<float>{largest, -largest, infinity, -infinity, std::nanf(""), -100.0f, 0.0f});
  GuardedArray<float> y(x.size()), dx(x.size()), one(std::vector<float>(x.size(), 1.0f));
  gelu_forward(x, y);
  gelu_backward(one, x, dx);
  EXPECT_EQ(y[0], largest);
  EXPECT_NEAR(y[1], 0.0f, 1e-30f);
  EXPECT_EQ(y[2], infinity);
  EXPECT_NEAR(y[3], 0.0f, 1e-30f);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_NEAR(y[5], 0.0f, 1e-30f);
  EXPECT_EQ(y[6], 0.0f);
  EXPECT_EQ(dx[0], 1.0f);
  EXPECT_NEAR(dx[1], 0.0f, 1e-25f);
  EXPECT_TRUE(std::isnan(dx[4]));
  EXPECT_EQ(dx[6], 0.5f);
}

TEST(Gelu, BackwardAgreesWithFiniteDifferences) {
  GuardedArray<float> x(normal_values<float>(101, 2.0, 1)), dy(normal_values<float>(101, 1.0, 2)), dx(101);
  gelu_backward(dy, x, dx);
  Doubles at = as_double(x.values());
  const Doubles weights = as_double(dy.values());
  const auto loss = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < at.size(); ++i) sum += weights[i] * gelu(at[i]);
    return sum;
  };
  expect_within(dx, finite_differences(at, loss), Doubles(at.size(), 1e-6), "dx");
}

struct EmbeddingShape {
  std::int64_t batch, time, channels, vocabulary, positions;
};
const EmbeddingShape kEmbeddingShapes[] = {{1, 1, 1, 1, 1}, {2, 5, 7, 11, 9}, {3, 16, 48, 257, 16}, {2, 33, 320, 50, 64}};

// Few distinct tokens, so that rows of the gradient collect many terms.
GuardedArray<std::int32_t> tokens(const EmbeddingShape& s) {
  std::mt19937 generator(9);
  std::vector<std::int32_t> values(s.batch * s.time);
  for (auto& token : values) token = static_cast<std::int32_t>(generator() % s.vocabulary);
  return GuardedArray<std::int32_t>(values);
}

template <class T>
void embedding_forward(const EmbeddingShape& shape, GuardedArray<std::int32_t>& ids, GuardedArray<T>& table, GuardedArray<T>& positions,
                       GuardedArray<T>& out) {
  run_ops<T>([&](Ops& ops, Stream& s, OpMemory& on) {
    ops.embedding_forward(s, {on(ids), on(table), on(positions), on(out), shape.batch, shape.time, shape.channels});
  });
}

template <class T>
void embedding_backward(const EmbeddingShape& shape, GuardedArray<std::int32_t>& ids, GuardedArray<T>& dout, GuardedArray<float>& dtable,
                        GuardedArray<float>& dpositions) {
  run_ops<T>([&](Ops& ops, Stream& s, OpMemory& on) {
    ops.embedding_backward(s, {on(ids), on(dout), on(dtable), on(dpositions), shape.batch, shape.time, shape.channels, shape.vocabulary,
                               shape.positions});
  });
}

template <class T>
class EmbeddingTest : public testing::Test {};
TYPED_TEST_SUITE(EmbeddingTest, StorageTypes);

TYPED_TEST(EmbeddingTest, ForwardAddsTokenAndPosition) {
  using T = TypeParam;
  for (const EmbeddingShape& s : kEmbeddingShapes) {
    GuardedArray<std::int32_t> ids = tokens(s);
    GuardedArray<T> table(normal_values<T>(s.vocabulary * s.channels, 1.0, 1)), positions(normal_values<T>(s.positions * s.channels, 1.0, 2));
    GuardedArray<T> out(s.batch * s.time * s.channels);
    embedding_forward(s, ids, table, positions, out);
    Doubles expected;
    for (std::int64_t row = 0; row < s.batch * s.time; ++row)
      for (std::int64_t c = 0; c < s.channels; ++c)
        expected.push_back(static_cast<double>(to_float(table[ids[row] * s.channels + c])) + to_float(positions[row % s.time * s.channels + c]));
    Doubles allowed;
    for (const double e : expected) allowed.push_back(0x1p-24 * std::fabs(e));
    expect_within(out, expected, allowed, "embedding");
  }
}

TYPED_TEST(EmbeddingTest, BackwardIsTheTransposeOfForward) {
  using T = TypeParam;
  for (const EmbeddingShape& s : kEmbeddingShapes) {
    GuardedArray<std::int32_t> ids = tokens(s);
    GuardedArray<T> dout(normal_values<T>(s.batch * s.time * s.channels, 1.0, 3));
    const std::vector<float> before = normal_values<float>(s.vocabulary * s.channels, 1.0, 4);
    GuardedArray<float> dtable(before), dpositions(s.positions * s.channels);
    embedding_backward(s, ids, dout, dtable, dpositions);
    Doubles table = as_double(before), positions(s.positions * s.channels, 0.0), table_size, position_size(positions.size(), 0.0);
    for (const double v : table) table_size.push_back(std::fabs(v));
    for (std::int64_t row = 0; row < s.batch * s.time; ++row)
      for (std::int64_t c = 0; c < s.channels; ++c) {
        const double d = to_float(dout[row * s.channels + c]);
        table[ids[row] * s.channels + c] += d;
        table_size[ids[row] * s.channels + c] += std::fabs(d);
        positions[row % s.time * s.channels + c] += d;
        position_size[row % s.time * s.channels + c] += std::fabs(d);
      }
    // At most 66 terms meet in one element.
    for (double& v : table_size) v *= 8 * 0x1p-24;
    for (double& v : position_size) v *= 8 * 0x1p-24;
    expect_within(dtable, table, table_size, "token table");
    expect_within(dpositions, positions, position_size, "position table");
  }
}

TYPED_TEST(EmbeddingTest, DoesNotDependOnTheNumberOfThreads) {
  using T = TypeParam;
  const EmbeddingShape s{4, 64, 320, 50, 100};
  GuardedArray<std::int32_t> ids = tokens(s);
  GuardedArray<T> table(normal_values<T>(s.vocabulary * s.channels, 1.0, 1)), positions(normal_values<T>(s.positions * s.channels, 1.0, 2));
  expect_same_bits_for_any_thread_count([&] {
    GuardedArray<T> out(s.batch * s.time * s.channels);
    GuardedArray<float> dtable(std::vector<float>(s.vocabulary * s.channels, 0.25f)), dpositions(s.positions * s.channels);
    embedding_forward(s, ids, table, positions, out);
    embedding_backward(s, ids, out, dtable, dpositions);
    std::vector<std::byte> bytes;
    append_bytes(bytes, out);
    append_bytes(bytes, dtable);
    append_bytes(bytes, dpositions);
    return bytes;
  });
}

TEST(Embedding, BackwardAgreesWithFiniteDifferences) {
  const EmbeddingShape s{2, 3, 5, 4, 6};
  GuardedArray<std::int32_t> ids = tokens(s);
  GuardedArray<float> dout(normal_values<float>(s.batch * s.time * s.channels, 1.0, 3));
  GuardedArray<float> dtable(std::vector<float>(s.vocabulary * s.channels, 0.0f)), dpositions(s.positions * s.channels);
  embedding_backward(s, ids, dout, dtable, dpositions);
  Doubles table(s.vocabulary * s.channels, 0.5), positions(s.positions * s.channels, 0.25);
  const Doubles weights = as_double(dout.values());
  const auto loss = [&] {
    double sum = 0;
    for (std::int64_t row = 0; row < s.batch * s.time; ++row)
      for (std::int64_t c = 0; c < s.channels; ++c)
        sum += weights[row * s.channels + c] * (table[ids[row] * s.channels + c] + positions[row % s.time * s.channels + c]);
    return sum;
  };
  expect_within(dtable, finite_differences(table, loss), Doubles(table.size(), 1e-6), "token table");
  expect_within(dpositions, finite_differences(positions, loss), Doubles(positions.size(), 1e-6), "position table");
}

}  // namespace
}  // namespace spillway
