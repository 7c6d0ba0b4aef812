// Causal attention against a float64 reference, itself held against finite differences.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include "spillway/error.h"
#include "support/attention_reference.h"
#include "support/op_check.h"

namespace spillway {
namespace {

using test::AttentionReference;
using test::Estimates;
using test::GuardedArray;
using test::normal_values;

// f32 arithmetic, of a tensor's largest element. On the host and in simulation 4e-7 was the most seen; tensor cores add
// up with bits cut off, in an order of their own.
template <class T>
double bound() {
  return test::on_cuda() && !std::is_same_v<T, float> ? 1e-5 : 2e-6;
}

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Tensor cores multiply what has been rounded to T.
template <class T>
test::OperandRounding rounding() {
  return test::on_cuda() ? test::kRoundingTo<T> : test::OperandRounding{};
}

template <class T>
void expect_near(const std::vector<T>& got, const Estimates& expected, double bound, const std::string& what) {
  double largest = 0.0;
  for (const double value : expected.value) largest = std::max(largest, std::fabs(value));
  std::vector<double> allowed = expected.error;
  for (double& error : allowed) error += bound * largest;
  GuardedArray<T> values(got);
  test::expect_within(values, expected.value, allowed, what);
}

template <class T>
struct Run {
  std::vector<T> y, dqkv;
  std::vector<float> log_sum_exp;

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    test::append_bytes(all, y);
    test::append_bytes(all, dqkv);
    test::append_bytes(all, log_sum_exp);
    return all;
  }
};

// An array's values after `skip` elements that are nobody's, so that they start where vectors of T may not.
template <class T>
GuardedArray<T> shifted(const std::vector<T>& values, std::size_t skip) {
  std::vector<T> with_gap(skip, from_float<T>(NAN));
  with_gap.insert(with_gap.end(), values.begin(), values.end());
  return GuardedArray<T>(with_gap);
}

template <class T>
std::vector<T> without(GuardedArray<T>& array, std::size_t skip) {
  const auto values = array.values();
  return {values.begin() + static_cast<std::ptrdiff_t>(skip), values.end()};
}

// Both kernels on guarded memory, all tensors of T starting `skip` elements after an address that suits vectors.
template <class T>
Run<T> run(const AttentionDims& dims, const std::vector<T>& qkv, const std::vector<T>& dy, std::size_t skip = 0) {
  GuardedArray<T> in = shifted(qkv, skip), dout = shifted(dy, skip), y(dy.size() + skip), dqkv(qkv.size() + skip);
  GuardedArray<float> log_sum_exp(size(dims.batch * dims.heads * dims.time));
  test::run_ops<T>([&](Ops& ops, Stream& stream, test::OpMemory& on) {
    const ScratchSizes& scratch = ops.scratch_sizes();
    ops.attention_forward(stream, {.qkv = on(in) + skip,
                                   .y = on(y) + skip,
                                   .log_sum_exp = on(log_sum_exp),
                                   .dims = dims,
                                   .scratch = on.scratch(scratch.attention_forward(test::kDType<T>, dims))});
    ops.attention_backward(stream, {.dy = on(dout) + skip,
                                    .qkv = on(in) + skip,
                                    .y = on(y) + skip,
                                    .log_sum_exp = on(log_sum_exp),
                                    .dqkv = on(dqkv) + skip,
                                    .dims = dims,
                                    .scratch = on.scratch(scratch.attention_backward(test::kDType<T>, dims))});
  });
  return {without(y, skip), without(dqkv, skip), log_sum_exp.values()};
}

// Around the sizes of tiles, of vectors and of what kernels are compiled for.
const AttentionDims kShapes[] = {{1, 1, 1, 8},   {2, 1, 3, 64},   {2, 2, 2, 7},     {2, 5, 3, 8},    {1, 15, 1, 40},
                                 {1, 16, 2, 16}, {1, 17, 1, 80},  {1, 17, 2, 7},    {1, 33, 1, 128}, {1, 63, 2, 8},
                                 {1, 64, 1, 64}, {1, 65, 2, 64},  {1, 65, 1, 96},   {2, 130, 3, 8},  {1, 130, 1, 40},
                                 {3, 7, 13, 12}, {1, 35, 1, 200}, {1, 130, 1, 128}, {1, 70, 1, 256}};

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
    const AttentionReference reference{dims, test::as_double(qkv), rounding<TypeParam>()};
    std::vector<double> log_sum_exp;
    const Estimates y = reference.forward(log_sum_exp);
    const auto got = run<TypeParam>(dims, qkv, dy);
    expect_near(got.y, y, bound<TypeParam>(), "y, " + describe(dims));
    test::expect_close<float>(got.log_sum_exp, log_sum_exp, bound<TypeParam>(), "log_sum_exp, " + describe(dims));
    expect_near(got.dqkv, reference.backward(test::as_double(dy)), bound<TypeParam>(), "dqkv, " + describe(dims));
  }
}

TYPED_TEST(Attention, GradientIsThatOfFiniteDifferences) {
  const AttentionDims dims{2, 9, 2, 8};
  const auto qkv = random_qkv<TypeParam>(dims);
  const auto dy = random_dy<TypeParam>(dims);
  const auto weights = test::as_double(dy);
  AttentionReference reference{dims, test::as_double(qkv), rounding<TypeParam>()};
  std::vector<double> unused;
  Estimates numeric = reference.backward(weights);  // for the errors
  const auto loss = [&] { return test::dot(reference.forward(unused).value, weights); };
  numeric.value = test::finite_differences(reference.qkv, loss, 1e-5);
  expect_near(run<TypeParam>(dims, qkv, dy).dqkv, numeric, bound<TypeParam>(), "dqkv");
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
  // On the host more heads than slots of scratch; on CUDA the count is of no account, and this is one run after another.
  const AttentionDims dims = test::on_cuda() ? AttentionDims{2, 70, 2, 16} : AttentionDims{3, 131, 13, 16};
  const auto qkv = random_qkv<TypeParam>(dims);
  const auto dy = random_dy<TypeParam>(dims);
  test::expect_same_bits_for_any_thread_count([&] { return run<TypeParam>(dims, qkv, dy).bytes(); });
}

// Where a weight or activation starts depends on what is before it in a flat buffer.
TYPED_TEST(Attention, BitsDoNotDependOnAlignment) {
  const AttentionDims dims{2, 37, 2, 24};
  const auto qkv = random_qkv<TypeParam>(dims);
  const auto dy = random_dy<TypeParam>(dims);
  const auto aligned = run<TypeParam>(dims, qkv, dy).bytes();
  EXPECT_TRUE((run<TypeParam>(dims, qkv, dy, 1).bytes() == aligned));
  EXPECT_TRUE((run<TypeParam>(dims, qkv, dy, 2).bytes() == aligned));
}

// Scores of a few hundred overflow e^x; the maximum is taken off first.
TYPED_TEST(Attention, LargeScoresStayFinite) {
  const AttentionDims dims{1, 5, 1, 8};
  auto qkv = random_qkv<TypeParam>(dims);
  for (auto& value : qkv) value = from_float<TypeParam>(20.0f * to_float(value));
  const auto dy = random_dy<TypeParam>(dims);
  const AttentionReference reference{dims, test::as_double(qkv), rounding<TypeParam>()};
  std::vector<double> log_sum_exp;
  const Estimates y = reference.forward(log_sum_exp);
  ASSERT_GT(*std::max_element(log_sum_exp.begin(), log_sum_exp.end()), 100.0);
  const auto got = run<TypeParam>(dims, qkv, dy);
  // Rounding a score of s to f32 moves its probability by s * 2^-24.
  expect_near(got.y, y, 1e-4, "y");
  expect_near(got.dqkv, reference.backward(test::as_double(dy)), 1e-4, "dqkv");
}

// A NaN or an infinity in a gradient has to reach the check for overflow.
TYPED_TEST(Attention, NonFiniteValuesStaySo) {
  const AttentionDims dims{1, 20, 1, 8};
  const std::size_t row = size(3 * dims.heads * dims.head_size);
  for (const float value : {NAN, INFINITY}) {
    auto qkv = random_qkv<TypeParam>(dims);
    auto dy = random_dy<TypeParam>(dims);
    qkv[10 * row] = from_float<TypeParam>(value);  // in q
    auto got = run<TypeParam>(dims, qkv, dy);
    EXPECT_FALSE(std::isfinite(to_float(got.y[10 * row / 3]))) << value;
    EXPECT_FALSE(std::isfinite(to_float(got.dqkv[10 * row]))) << value;
    qkv = random_qkv<TypeParam>(dims);
    dy[10 * row / 3] = from_float<TypeParam>(value);
    got = run<TypeParam>(dims, qkv, dy);
    EXPECT_FALSE(std::isfinite(to_float(got.dqkv[10 * row]))) << value;
  }
}

TEST(CudaAttention, RefusesHeadsThatItHasNoKernelFor) {
  const AttentionDims largest{1, 128, 4, 256}, too_large{1, 128, 4, 257};
  EXPECT_EQ(cuda_scratch_sizes().attention_forward(DType::bf16, largest), 0);
  for (const auto bytes : {cuda_scratch_sizes().attention_forward, cuda_scratch_sizes().attention_backward}) {
    try {
      bytes(DType::bf16, too_large);
      FAIL() << "accepted";
    } catch (const DeviceError& error) {
      EXPECT_NE(std::string(error.what()).find("4 heads of 257 channels: a head may have at most 256"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace spillway
