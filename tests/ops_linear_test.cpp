#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "host/gemm.h"
#include "host/kernels.h"
#include "support/op_check.h"

namespace spillway {
namespace {

using namespace test;

// One row; odd sizes; more rows than a block, more sums than a chunk, more columns than a block.
const MatmulDims kShapes[] = {{1, 1, 1}, {1, 7, 48}, {5, 320, 7}, {48, 1, 320}, {129, 257, 48}, {520, 40, 1100}, {33, 1100, 17}};

std::string name(const MatmulDims& d) { return std::to_string(d.m) + "x" + std::to_string(d.n) + "x" + std::to_string(d.k); }

// (a * b), element (i, j) the sum over l of a(i, l) * b(l, j), and the bound of its f32 rounding errors:
// independent errors of k additions, relative to the sum of magnitudes, with room to spare.
struct Product {
  Doubles value, allowed;
};

template <class A, class B>
Product multiply(std::int64_t m, std::int64_t n, std::int64_t k, A a, B b) {
  Product p;
  const double unit = (std::sqrt(static_cast<double>(k)) + 8) * 0x1p-24;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double term = a(i, l) * b(l, j);
        sum += term;
        magnitude += std::fabs(term);
      }
      p.value.push_back(sum);
      p.allowed.push_back(unit * magnitude);
    }
  return p;
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

double gelu_slope(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

template <class T>
struct Problem {
  explicit Problem(const MatmulDims& d)
      : dims(d),
        x(normal_values<T>(d.m * d.k, 1.0, 1)),
        weight(normal_values<T>(d.n * d.k, 0.1, 2)),
        bias(normal_values<T>(d.n, 1.0, 3)),
        residual(normal_values<T>(d.m * d.n, 1.0, 4)),
        dy(normal_values<T>(d.m * d.n, 0.5, 5)),
        gelu_input(normal_values<T>(d.m * d.k, 1.0, 6)) {}

  // gelu: nullptr if not wanted.
  void forward(GuardedArray<T>& y, bool with_bias = true, bool with_residual = true, GuardedArray<T>* gelu = nullptr) {
    run_ops<T>([&](Ops& ops, Stream& s, OpMemory& on) {
      ops.linear_forward(s, {on(x), on(weight), on(bias, with_bias), on(residual, with_residual), on(y), dims,
                             on.scratch(ops.scratch_sizes().linear_forward(kDType<T>, dims)), gelu ? on(*gelu) : nullptr});
    });
  }

  // dx and dbias: nullptr if not wanted.
  void backward(GuardedArray<T>* dx, GuardedArray<float>& dweight, GuardedArray<float>* dbias, bool through_gelu = false) {
    run_ops<T>([&](Ops& ops, Stream& s, OpMemory& on) {
      ops.linear_backward(s, {on(dy), on(x), on(weight), dx ? on(*dx) : nullptr, on(dweight), dbias ? on(*dbias) : nullptr, dims,
                              on.scratch(ops.scratch_sizes().linear_backward(kDType<T>, dims)), on(gelu_input, through_gelu)});
    });
  }

  Product expected_y(bool with_bias = true, bool with_residual = true) {
    const Doubles x64 = as_double(x.values()), w = as_double(weight.values()), b = as_double(bias.values()), r = as_double(residual.values());
    Product y = multiply(dims.m, dims.n, dims.k, [&](auto i, auto l) { return x64[i * dims.k + l]; },
                         [&](auto l, auto j) { return w[j * dims.k + l]; });
    for (std::size_t i = 0; i < y.value.size(); ++i) {
      const double plus_bias = with_bias ? b[i % dims.n] : 0.0, plus_residual = with_residual ? r[i] : 0.0;
      y.allowed[i] += 0x1p-23 * (std::fabs(plus_bias) + std::fabs(plus_residual) + std::fabs(y.value[i]));
      y.value[i] += plus_bias + plus_residual;
    }
    return y;
  }

  Product expected_dx() {
    const Doubles w = as_double(weight.values()), dy64 = as_double(dy.values());
    return multiply(dims.m, dims.k, dims.n, [&](auto i, auto l) { return dy64[i * dims.n + l]; },
                    [&](auto l, auto j) { return w[l * dims.k + j]; });
  }

  Product expected_dweight() {
    const Doubles x64 = as_double(x.values()), dy64 = as_double(dy.values());
    return multiply(dims.n, dims.k, dims.m, [&](auto i, auto l) { return dy64[l * dims.n + i]; },
                    [&](auto l, auto j) { return x64[l * dims.k + j]; });
  }

  Product expected_dbias() {
    const Doubles dy64 = as_double(dy.values());
    return multiply(dims.n, 1, dims.m, [&](auto i, auto l) { return dy64[l * dims.n + i]; }, [](auto, auto) { return 1.0; });
  }

  MatmulDims dims;
  GuardedArray<T> x, weight, bias, residual, dy, gelu_input;
};

template <class T>
class LinearTest : public testing::Test {};
TYPED_TEST_SUITE(LinearTest, StorageTypes);

TYPED_TEST(LinearTest, ForwardMatchesFloat64) {
  using T = TypeParam;
  for (const MatmulDims& d : kShapes) {
    Problem<T> p(d);
    for (const bool with_bias : {false, true})
      for (const bool with_residual : {false, true}) {
        const Product expected = p.expected_y(with_bias, with_residual);
        GuardedArray<T> y(d.m * d.n);
        p.forward(y, with_bias, with_residual);
        expect_within(y, expected.value, expected.allowed, name(d));
      }
  }
}

TYPED_TEST(LinearTest, ResultMayTakeThePlaceOfTheResidual) {
  using T = TypeParam;
  const MatmulDims d{65, 257, 1100};
  Problem<T> p(d);
  GuardedArray<T> y(d.m * d.n);
  p.forward(y);
  p.forward(p.residual);
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(to_float(y[i]), to_float(p.residual[i])) << i;
}

TYPED_TEST(LinearTest, BackwardMatchesFloat64) {
  using T = TypeParam;
  for (const MatmulDims& d : kShapes) {
    Problem<T> p(d);
    const Product dx = p.expected_dx(), dweight = p.expected_dweight(), dbias = p.expected_dbias();
    GuardedArray<T> got_dx(d.m * d.k);
    GuardedArray<float> got_dweight(d.n * d.k), got_dbias(d.n);
    p.backward(&got_dx, got_dweight, &got_dbias);
    expect_within(got_dx, dx.value, dx.allowed, "dx " + name(d));
    expect_within(got_dweight, dweight.value, dweight.allowed, "dweight " + name(d));
    expect_within(got_dbias, dbias.value, dbias.allowed, "dbias " + name(d));
  }
}

// Absolute error of GELU and its slope in f32; the slope is at most 1.13.
constexpr double kGeluError = 0x1p-20, kSteepest = 1.13;

TYPED_TEST(LinearTest, GeluFollowsInTheSameCall) {
  using T = TypeParam;
  for (const MatmulDims& d : {MatmulDims{5, 7, 48}, MatmulDims{33, 64, 40}, MatmulDims{65, 256, 17}}) {
    Problem<T> p(d);
    for (const bool with_bias : {false, true}) {
      const Product y = p.expected_y(with_bias, false);
      Product expected = y;
      for (std::size_t i = 0; i < y.value.size(); ++i) {
        expected.value[i] = gelu(y.value[i]);
        // It may be taken of y as rounded.
        expected.allowed[i] = kSteepest * (y.allowed[i] + kRoundoff<T> * std::fabs(y.value[i])) + kGeluError * std::max(std::fabs(y.value[i]), 0.125);
      }
      GuardedArray<T> got_y(d.m * d.n), got_gelu(d.m * d.n);
      p.forward(got_y, with_bias, false, &got_gelu);
      expect_within(got_y, y.value, y.allowed, "y " + name(d));
      expect_within(got_gelu, expected.value, expected.allowed, "gelu " + name(d));
    }
  }
}

TYPED_TEST(LinearTest, GradientGoesThroughGeluInTheSameCall) {
  using T = TypeParam;
  for (const MatmulDims& d : {MatmulDims{5, 7, 48}, MatmulDims{33, 64, 40}, MatmulDims{65, 17, 256}}) {
    Problem<T> p(d);
    const Doubles input = as_double(p.gelu_input.values());
    Product expected = p.expected_dx();
    for (std::size_t i = 0; i < expected.value.size(); ++i) {
      const double magnitude = std::fabs(expected.value[i]);
      // dx may be rounded before the slope is applied, and again after.
      expected.allowed[i] = kSteepest * (expected.allowed[i] + kRoundoff<T> * magnitude) + kGeluError * magnitude;
      expected.value[i] *= gelu_slope(input[i]);
    }
    GuardedArray<T> got_dx(d.m * d.k);
    GuardedArray<float> got_dweight(d.n * d.k), dweight(d.n * d.k);
    p.backward(&got_dx, got_dweight, nullptr, true);
    expect_within(got_dx, expected.value, expected.allowed, "dx " + name(d));
    p.backward(nullptr, dweight, nullptr);
    EXPECT_EQ(got_dweight.values(), dweight.values());
  }
}

// The host rounds y before GELU, and dx before its slope, so that recomputing in two calls gives the same bits.
TYPED_TEST(LinearTest, GeluOfTheHostIsThatOfACallOfItsOwn) {
  using T = TypeParam;
  const MatmulDims d{33, 64, 40};
  Problem<T> p(d);
  const auto bytes = [](auto&... arrays) {
    std::vector<std::byte> all;
    (append_bytes(all, arrays), ...);
    return all;
  };
  GuardedArray<T> y(d.m * d.n), gelu(d.m * d.n), dx(d.m * d.k), y_alone(d.m * d.n), gelu_alone(d.m * d.n), dx_alone(d.m * d.k);
  GuardedArray<float> dweight(d.n * d.k);
  GuardedBytes scratch(static_cast<std::size_t>(std::max(host_scratch_sizes().linear_forward(kDType<T>, d), host_scratch_sizes().linear_backward(kDType<T>, d))));
  host::linear_forward<T>({p.x.data(), p.weight.data(), p.bias.data(), nullptr, y.data(), d, scratch.span(), gelu.data()});
  host::linear_forward<T>({p.x.data(), p.weight.data(), p.bias.data(), nullptr, y_alone.data(), d, scratch.span()});
  host::gelu_forward<T>({y_alone.data(), gelu_alone.data(), d.m * d.n});
  host::linear_backward<T>({p.dy.data(), p.x.data(), p.weight.data(), dx.data(), dweight.data(), nullptr, d, scratch.span(), p.gelu_input.data()});
  host::linear_backward<T>({p.dy.data(), p.x.data(), p.weight.data(), dx_alone.data(), dweight.data(), nullptr, d, scratch.span()});
  host::gelu_backward<T>({dx_alone.data(), p.gelu_input.data(), dx_alone.data(), d.m * d.k});
  EXPECT_TRUE(bytes(y, gelu, dx) == bytes(y_alone, gelu_alone, dx_alone));
}

// Parameters lie in a flat buffer one behind the other, so that one of odd size leaves all that follow misaligned.
TYPED_TEST(LinearTest, ParametersMayStartAtAnyElement) {
  using T = TypeParam;
  const MatmulDims d{24, 32, 40};
  Problem<T> p(d);
  const auto behind_one = [](auto& array) {
    auto values = array.values();
    values.insert(values.begin(), values.front());
    return GuardedArray(values);
  };
  const auto without_first = [](auto& array) {
    auto values = array.values();
    values.erase(values.begin());
    return GuardedArray(values);
  };
  GuardedArray<T> weight = behind_one(p.weight), bias = behind_one(p.bias), y(d.m * d.n), gelu(d.m * d.n), dx(d.m * d.k);
  GuardedArray<float> dweight(d.n * d.k + 1), dbias(d.n + 1);
  run_ops<T>([&](Ops& ops, Stream& s, OpMemory& on) {
    ops.linear_forward(s, {on(p.x), on(weight) + 1, on(bias) + 1, nullptr, on(y), d,
                           on.scratch(ops.scratch_sizes().linear_forward(kDType<T>, d)), on(gelu)});
    ops.linear_backward(s, {on(p.dy), on(p.x), on(weight) + 1, on(dx), on(dweight) + 1, on(dbias) + 1, d,
                            on.scratch(ops.scratch_sizes().linear_backward(kDType<T>, d))});
  });
  const Product expected_y = p.expected_y(true, false), expected_dx = p.expected_dx();
  const Product expected_dweight = p.expected_dweight(), expected_dbias = p.expected_dbias();
  GuardedArray<float> got_dweight = without_first(dweight), got_dbias = without_first(dbias);
  expect_within(y, expected_y.value, expected_y.allowed, "y");
  expect_within(dx, expected_dx.value, expected_dx.allowed, "dx");
  expect_within(got_dweight, expected_dweight.value, expected_dweight.allowed, "dweight");
  expect_within(got_dbias, expected_dbias.value, expected_dbias.allowed, "dbias");
}

// What is known of a product from an earlier call of its kind is not where its parameters are.
TYPED_TEST(LinearTest, EveryCallTakesItsOwnBias) {
  using T = TypeParam;
  const MatmulDims d{24, 32, 40};
  Problem<T> p(d);
  GuardedArray<T> other_bias(std::vector<T>(static_cast<std::size_t>(d.n), from_float<T>(3.0f))), other_y(d.m * d.n), y(d.m * d.n);
  run_ops<T>([&](Ops& ops, Stream& s, OpMemory& on) {
    const auto scratch = on.scratch(ops.scratch_sizes().linear_forward(kDType<T>, d));
    ops.linear_forward(s, {on(p.x), on(p.weight), on(other_bias), nullptr, on(other_y), d, scratch, nullptr});
    ops.linear_forward(s, {on(p.x), on(p.weight), on(p.bias), nullptr, on(y), d, scratch, nullptr});
  });
  const Product expected = p.expected_y(true, false);
  expect_within(y, expected.value, expected.allowed, "y");
}

TYPED_TEST(LinearTest, LeavesOutWhatIsNotWanted) {
  using T = TypeParam;
  const MatmulDims d{5, 7, 48};
  Problem<T> p(d);
  GuardedArray<T> dx(d.m * d.k);
  GuardedArray<float> dweight(d.n * d.k), dbias(d.n), dweight_alone(d.n * d.k);
  p.backward(&dx, dweight, &dbias);
  p.backward(nullptr, dweight_alone, nullptr);
  EXPECT_EQ(dweight.values(), dweight_alone.values());
}

TYPED_TEST(LinearTest, DoesNotDependOnTheNumberOfThreads) {
  using T = TypeParam;
  for (const MatmulDims& d : {MatmulDims{129, 257, 320}, MatmulDims{520, 130, 1100}}) {
    Problem<T> p(d);
    expect_same_bits_for_any_thread_count([&] {
      GuardedArray<T> y(d.m * d.n), dx(d.m * d.k);
      GuardedArray<float> dweight(d.n * d.k), dbias(d.n);
      p.forward(y);
      p.backward(&dx, dweight, &dbias);
      std::vector<std::byte> bytes;
      append_bytes(bytes, y);
      append_bytes(bytes, dx);
      append_bytes(bytes, dweight);
      append_bytes(bytes, dbias);
      return bytes;
    });
  }
}

TEST(Linear, BackwardAgreesWithFiniteDifferences) {
  const MatmulDims d{3, 5, 7};
  Problem<float> p(d);
  Doubles x = as_double(p.x.values()), w = as_double(p.weight.values()), bias = as_double(p.bias.values());
  const Doubles dy = as_double(p.dy.values());
  const auto loss = [&] {
    double sum = 0;
    for (std::int64_t i = 0; i < d.m; ++i)
      for (std::int64_t j = 0; j < d.n; ++j) {
        double y = bias[j];
        for (std::int64_t l = 0; l < d.k; ++l) y += x[i * d.k + l] * w[j * d.k + l];
        sum += dy[i * d.n + j] * y;
      }
    return sum;
  };
  GuardedArray<float> dx(d.m * d.k), dweight(d.n * d.k), dbias(d.n);
  p.backward(&dx, dweight, &dbias);
  expect_within(dx, finite_differences(x, loss), Doubles(x.size(), 1e-6), "dx");
  expect_within(dweight, finite_differences(w, loss), Doubles(w.size(), 1e-6), "dweight");
  expect_within(dbias, finite_differences(bias, loss), Doubles(bias.size(), 1e-6), "dbias");
}

TEST(Gemm, ScratchStaysBoundedForAnyShape) {
  for (const host::GemmShape& shape : {host::GemmShape{1 << 20, 50257, 1 << 14}, host::GemmShape{1024, 6400, 1600}, host::GemmShape{513, 1025, 1025}})
    EXPECT_LE(host::gemm_scratch_bytes(shape, DType::bf16, DType::f16, host::GemmResult::rounded), 8 << 20);
  EXPECT_EQ(host::gemm_scratch_bytes({1024, 50257, 768}, DType::f32, DType::f32, host::GemmResult::plain_f32), 0);
}

TEST(Gemm, AddsToTheResultWhenAsked) {
  const std::int64_t m = 17, n = 1030, k = 1100, ldc = n + 3;
  const std::vector<float> a = normal_values<float>(m * k, 1.0, 1), initial = normal_values<float>(m * ldc, 1.0, 3);
  const std::vector<bf16> b = normal_values<bf16>(k * n, 1.0, 2);
  const Doubles a64 = as_double(a), b64 = as_double(b);
  Product expected = multiply(m, n, k, [&](auto i, auto l) { return a64[i * k + l]; }, [&](auto l, auto j) { return b64[l * n + j]; });
  GuardedArray<float> c(initial);
  const host::GemmShape shape{m, n, k};
  GuardedBytes scratch(host::gemm_scratch_bytes(shape, DType::f32, DType::bf16, host::GemmResult::plain_f32));
  host::gemm(host::Gemm<float, bf16, float>{.shape = shape,
                                            .a_transposed = host::Transposed::no,
                                            .b_transposed = host::Transposed::no,
                                            .a = a.data(),
                                            .lda = k,
                                            .b = b.data(),
                                            .ldb = n,
                                            .c = c.data(),
                                            .ldc = ldc,
                                            .add_to_c = true,
                                            .scratch = scratch.span()});
  EXPECT_TRUE(scratch.guards_intact());
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j)
      ASSERT_NEAR(c[i * ldc + j], expected.value[i * n + j] + initial[i * ldc + j], 2 * expected.allowed[i * n + j]);
    for (std::int64_t j = n; j < ldc; ++j) ASSERT_EQ(c[i * ldc + j], initial[i * ldc + j]);
  }
}

}  // namespace
}  // namespace spillway
