#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "host/gemm.h"
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

template <class T>
struct Problem {
  explicit Problem(const MatmulDims& d)
      : dims(d),
        x(normal_values<T>(d.m * d.k, 1.0, 1)),
        weight(normal_values<T>(d.n * d.k, 0.1, 2)),
        bias(normal_values<T>(d.n, 1.0, 3)),
        residual(normal_values<T>(d.m * d.n, 1.0, 4)),
        dy(normal_values<T>(d.m * d.n, 0.5, 5)) {}

  void forward(GuardedArray<T>& y, bool with_bias = true, bool with_residual = true) {
    run_ops<T>([&](Ops& ops, Stream& s, OpMemory& on) {
      ops.linear_forward(s, {on(x), on(weight), on(bias, with_bias), on(residual, with_residual), on(y), dims,
                             on.scratch(ops.scratch_sizes().linear_forward(kDType<T>, dims))});
    });
  }

  // dx and dbias: nullptr if not wanted.
  void backward(GuardedArray<T>* dx, GuardedArray<float>& dweight, GuardedArray<float>* dbias) {
    run_ops<T>([&](Ops& ops, Stream& s, OpMemory& on) {
      ops.linear_backward(s, {on(dy), on(x), on(weight), dx ? on(*dx) : nullptr, on(dweight), dbias ? on(*dbias) : nullptr, dims,
                              on.scratch(ops.scratch_sizes().linear_backward(kDType<T>, dims))});
    });
  }

  MatmulDims dims;
  GuardedArray<T> x, weight, bias, residual, dy;
};

template <class T>
class LinearTest : public testing::Test {};
TYPED_TEST_SUITE(LinearTest, StorageTypes);

TYPED_TEST(LinearTest, ForwardMatchesFloat64) {
  using T = TypeParam;
  for (const MatmulDims& d : kShapes) {
    Problem<T> p(d);
    const Doubles x = as_double(p.x.values()), w = as_double(p.weight.values()), bias = as_double(p.bias.values());
    const Doubles residual = as_double(p.residual.values());
    const Product plain = multiply(d.m, d.n, d.k, [&](auto i, auto l) { return x[i * d.k + l]; },
                                   [&](auto l, auto j) { return w[j * d.k + l]; });
    for (const bool with_bias : {false, true})
      for (const bool with_residual : {false, true}) {
        Product expected = plain;
        for (std::size_t i = 0; i < expected.value.size(); ++i) {
          const double b = with_bias ? bias[i % d.n] : 0.0, r = with_residual ? residual[i] : 0.0;
          expected.value[i] += b + r;
          expected.allowed[i] += 0x1p-23 * (std::fabs(b) + std::fabs(r) + std::fabs(plain.value[i]));
        }
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
    const Doubles x = as_double(p.x.values()), w = as_double(p.weight.values()), dy = as_double(p.dy.values());
    const Product dx = multiply(d.m, d.k, d.n, [&](auto i, auto l) { return dy[i * d.n + l]; },
                                [&](auto l, auto j) { return w[l * d.k + j]; });
    const Product dweight = multiply(d.n, d.k, d.m, [&](auto i, auto l) { return dy[l * d.n + i]; },
                                     [&](auto l, auto j) { return x[l * d.k + j]; });
    const Product dbias = multiply(d.n, 1, d.m, [&](auto i, auto l) { return dy[l * d.n + i]; }, [](auto, auto) { return 1.0; });
    GuardedArray<T> got_dx(d.m * d.k);
    GuardedArray<float> got_dweight(d.n * d.k), got_dbias(d.n);
    p.backward(&got_dx, got_dweight, &got_dbias);
    expect_within(got_dx, dx.value, dx.allowed, "dx " + name(d));
    expect_within(got_dweight, dweight.value, dweight.allowed, "dweight " + name(d));
    expect_within(got_dbias, dbias.value, dbias.allowed, "dbias " + name(d));
  }
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
