// Causal attention against a float64 reference, itself held against finite differences.
#include <cmath>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "support/op_check.h"

namespace spillway {
namespace {

using test::expect_close;
using test::GuardedArray;
using test::normal_values;

// Of a tensor's largest element; 4e-7 was the most seen.
constexpr double kBound = 2e-6;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// The definition, term by term.
struct Reference {
  AttentionDims dims;
  std::vector<double> qkv;

  double at(std::int64_t b, std::int64_t t, int which, std::int64_t h, std::int64_t c) const {
    return qkv[index(b, t, which, h, c)];
  }
  std::size_t index(std::int64_t b, std::int64_t t, int which, std::int64_t h, std::int64_t c) const {
    return size((((b * dims.time + t) * 3 + which) * dims.heads + h) * dims.head_size + c);
  }
  std::size_t out_index(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) const {
    return size(((b * dims.time + t) * dims.heads + h) * dims.head_size + c);
  }

  // Probabilities of the keys 0..t for the query at t, and the log-sum-exp of their scores.
  std::vector<double> probabilities(std::int64_t b, std::int64_t h, std::int64_t t, double* log_sum_exp) const {
    std::vector<double> p(size(t + 1));
    double largest = -HUGE_VAL, sum = 0.0;
    for (std::int64_t key = 0; key <= t; ++key) {
      double score = 0.0;
      for (std::int64_t c = 0; c < dims.head_size; ++c) score += at(b, t, 0, h, c) * at(b, key, 1, h, c);
      p[size(key)] = score / std::sqrt(static_cast<double>(dims.head_size));
      largest = std::max(largest, p[size(key)]);
    }
    for (double& value : p) sum += value = std::exp(value - largest);
    for (double& value : p) value /= sum;
    *log_sum_exp = largest + std::log(sum);
    return p;
  }

  void forward(std::vector<double>& y, std::vector<double>& log_sum_exp) const {
    y.assign(qkv.size() / 3, 0.0);
    log_sum_exp.assign(size(dims.batch * dims.heads * dims.time), 0.0);
    for (std::int64_t b = 0; b < dims.batch; ++b) {
      for (std::int64_t h = 0; h < dims.heads; ++h) {
        for (std::int64_t t = 0; t < dims.time; ++t) {
          const auto p = probabilities(b, h, t, &log_sum_exp[size((b * dims.heads + h) * dims.time + t)]);
          for (std::int64_t key = 0; key <= t; ++key) {
            for (std::int64_t c = 0; c < dims.head_size; ++c) {
              y[out_index(b, t, h, c)] += p[size(key)] * at(b, key, 2, h, c);
            }
          }
        }
      }
    }
  }

  std::vector<double> backward(const std::vector<double>& dy) const {
    std::vector<double> dqkv(qkv.size(), 0.0);
    for (std::int64_t b = 0; b < dims.batch; ++b) {
      for (std::int64_t h = 0; h < dims.heads; ++h) {
        for (std::int64_t t = 0; t < dims.time; ++t) backward_row(b, h, t, dy, dqkv);
      }
    }
    return dqkv;
  }

  void backward_row(std::int64_t b, std::int64_t h, std::int64_t t, const std::vector<double>& dy,
                    std::vector<double>& dqkv) const {
    double unused, mean = 0.0;
    const auto p = probabilities(b, h, t, &unused);
    std::vector<double> dp(p.size(), 0.0);
    for (std::int64_t key = 0; key <= t; ++key) {
      for (std::int64_t c = 0; c < dims.head_size; ++c) {
        dp[size(key)] += dy[out_index(b, t, h, c)] * at(b, key, 2, h, c);
        dqkv[index(b, key, 2, h, c)] += p[size(key)] * dy[out_index(b, t, h, c)];
      }
      mean += p[size(key)] * dp[size(key)];
    }
    for (std::int64_t key = 0; key <= t; ++key) {
      const double ds = p[size(key)] * (dp[size(key)] - mean) / std::sqrt(static_cast<double>(dims.head_size));
      for (std::int64_t c = 0; c < dims.head_size; ++c) {
        dqkv[index(b, t, 0, h, c)] += ds * at(b, key, 1, h, c);
        dqkv[index(b, key, 1, h, c)] += ds * at(b, t, 0, h, c);
      }
    }
  }
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

template <class T>
struct Run {
  std::vector<T> y, dqkv;
  std::vector<float> log_sum_exp;
};

// Both kernels on guarded memory.
template <class T>
Run<T> run(const AttentionDims& dims, const std::vector<T>& qkv, const std::vector<T>& dy) {
  GuardedArray<T> in(qkv), dout(dy), y(dy.size()), dqkv(qkv.size());
  GuardedArray<float> log_sum_exp(size(dims.batch * dims.heads * dims.time));
  test::run_ops<T>([&](Ops& ops, Stream& stream, test::OpMemory& on) {
    const ScratchSizes& scratch = ops.scratch_sizes();
    ops.attention_forward(stream, {.qkv = on(in),
                                   .y = on(y),
                                   .log_sum_exp = on(log_sum_exp),
                                   .dims = dims,
                                   .scratch = on.scratch(scratch.attention_forward(test::kDType<T>, dims))});
    ops.attention_backward(stream, {.dy = on(dout),
                                    .qkv = on(in),
                                    .y = on(y),
                                    .log_sum_exp = on(log_sum_exp),
                                    .dqkv = on(dqkv),
                                    .dims = dims,
                                    .scratch = on.scratch(scratch.attention_backward(test::kDType<T>, dims))});
  });
  return {y.values(), dqkv.values(), log_sum_exp.values()};
}

const AttentionDims kShapes[] = {{1, 1, 1, 8},  {2, 1, 3, 64}, {2, 5, 3, 8},   {1, 63, 2, 8}, {1, 64, 1, 64},
                                 {1, 65, 2, 64}, {2, 130, 3, 8}, {3, 7, 13, 12}};

std::string describe(const AttentionDims& d) {
  return "B " + std::to_string(d.batch) + " T " + std::to_string(d.time) + " H " + std::to_string(d.heads) +
         " D " + std::to_string(d.head_size);
}

template <class T>
class Attention : public testing::Test {};
using StorageTypes = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(Attention, StorageTypes);

template <class T>
std::vector<T> random_qkv(const AttentionDims& dims) {
  return normal_values<T>(dims.batch * dims.time * 3 * dims.heads * dims.head_size, 1.0, 1);
}

template <class T>
std::vector<T> random_dy(const AttentionDims& dims) {
  return normal_values<T>(dims.batch * dims.time * dims.heads * dims.head_size, 0.5, 2);
}

TYPED_TEST(Attention, MatchesReferenceForwardAndBackward) {
  for (const AttentionDims& dims : kShapes) {
    const auto qkv = random_qkv<TypeParam>(dims);
    const auto dy = random_dy<TypeParam>(dims);
    const Reference reference{dims, test::as_double(qkv)};
    std::vector<double> y, log_sum_exp;
    reference.forward(y, log_sum_exp);
    const auto got = run<TypeParam>(dims, qkv, dy);
    expect_close<TypeParam>(got.y, y, kBound, "y, " + describe(dims));
    expect_close<float>(got.log_sum_exp, log_sum_exp, kBound, "log_sum_exp, " + describe(dims));
    expect_close<TypeParam>(got.dqkv, reference.backward(test::as_double(dy)), kBound, "dqkv, " + describe(dims));
  }
}

TYPED_TEST(Attention, GradientIsThatOfFiniteDifferences) {
  const AttentionDims dims{2, 9, 2, 8};
  const auto qkv = random_qkv<TypeParam>(dims);
  const auto dy = random_dy<TypeParam>(dims);
  const auto weights = test::as_double(dy);
  Reference reference{dims, test::as_double(qkv)};
  std::vector<double> numeric(qkv.size()), y, unused;
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < numeric.size(); ++i) {
    const double original = reference.qkv[i];
    reference.qkv[i] = original + kStep;
    reference.forward(y, unused);
    const double above = dot(y, weights);
    reference.qkv[i] = original - kStep;
    reference.forward(y, unused);
    numeric[i] = (above - dot(y, weights)) / (2 * kStep);
    reference.qkv[i] = original;
  }
  expect_close<TypeParam>(run<TypeParam>(dims, qkv, dy).dqkv, numeric, kBound, "dqkv");
}

TYPED_TEST(Attention, FuturePositionsHaveNoInfluence) {
  const AttentionDims dims{1, 70, 2, 8};
  auto qkv = random_qkv<TypeParam>(dims);
  const auto dy = random_dy<TypeParam>(dims);
  const auto before = run<TypeParam>(dims, qkv, dy);
  const std::size_t row = size(3 * dims.heads * dims.head_size), changed = 66;
  for (std::size_t i = changed * row; i < (changed + 1) * row; ++i) qkv[i] = from_float<TypeParam>(3.0f);
  const auto after = run<TypeParam>(dims, qkv, dy);
  const std::size_t unaffected = changed * row / 3 * sizeof(TypeParam);
  EXPECT_EQ(std::memcmp(before.y.data(), after.y.data(), unaffected), 0);
  EXPECT_NE(std::memcmp(before.y.data(), after.y.data(), before.y.size() * sizeof(TypeParam)), 0);
}

TYPED_TEST(Attention, BitsDoNotDependOnThreadCount) {
  const AttentionDims dims{3, 131, 13, 16};  // more heads than slots of scratch
  const auto qkv = random_qkv<TypeParam>(dims);
  const auto dy = random_dy<TypeParam>(dims);
  test::expect_same_bits_for_any_thread_count([&] {
    const auto got = run<TypeParam>(dims, qkv, dy);
    std::vector<std::byte> bytes;
    test::append_bytes(bytes, got.y);
    test::append_bytes(bytes, got.dqkv);
    test::append_bytes(bytes, got.log_sum_exp);
    return bytes;
  });
}

// Scores of a few hundred overflow e^x; the maximum is taken off first.
TYPED_TEST(Attention, LargeScoresStayFinite) {
  const AttentionDims dims{1, 5, 1, 8};
  auto qkv = random_qkv<TypeParam>(dims);
  for (auto& value : qkv) value = from_float<TypeParam>(20.0f * to_float(value));
  const auto dy = random_dy<TypeParam>(dims);
  const Reference reference{dims, test::as_double(qkv)};
  std::vector<double> y, log_sum_exp;
  reference.forward(y, log_sum_exp);
  ASSERT_GT(*std::max_element(log_sum_exp.begin(), log_sum_exp.end()), 100.0);
  const auto got = run<TypeParam>(dims, qkv, dy);
  // Rounding a score of s to f32 moves its probability by s * 2^-24.
  expect_close<TypeParam>(got.y, y, 1e-4, "y");
  expect_close<TypeParam>(got.dqkv, reference.backward(test::as_double(dy)), 1e-4, "dqkv");
}

}  // namespace
}  // namespace spillway
