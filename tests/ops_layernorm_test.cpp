#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "support/op_check.h"

namespace spillway {
namespace {

using namespace test;

constexpr float kEpsilon = 1e-5f;
constexpr double kUnit = 0x1p-24;

struct Shape {
  std::int64_t rows, channels;
};
// The last five: rows of which a CUDA thread holds more than one piece, or none.
const Shape kShapes[] = {{1, 1}, {1, 320}, {3, 7}, {17, 48}, {5, 1}, {100, 320}, {1030, 33}, {3, 515}, {3, 1031}, {3, 2064}, {2, 4104}, {2, 8200}};

std::string name(const Shape& s) { return std::to_string(s.rows) + "x" + std::to_string(s.channels); }

// Float64 layer normalisation with the statistics that go with it.
struct Reference {
  Doubles y, mean, rstd;

  Reference(const Doubles& x, const Doubles& weight, const Doubles& bias, const Shape& s) {
    for (std::int64_t row = 0; row < s.rows; ++row) {
      const double* const v = x.data() + row * s.channels;
      double m = 0, variance = 0;
      for (std::int64_t i = 0; i < s.channels; ++i) m += v[i];
      m /= static_cast<double>(s.channels);
      for (std::int64_t i = 0; i < s.channels; ++i) variance += (v[i] - m) * (v[i] - m);
      const double r = 1 / std::sqrt(variance / static_cast<double>(s.channels) + kEpsilon);
      mean.push_back(m);
      rstd.push_back(r);
      for (std::int64_t i = 0; i < s.channels; ++i) y.push_back((v[i] - m) * r * weight[i] + bias[i]);
    }
  }
};

template <class T>
struct Problem {
  explicit Problem(const Shape& s)
      : shape(s),
        x(normal_values<T>(s.rows * s.channels, 2.0, 1)),
        weight(normal_values<T>(s.channels, 1.0, 2)),
        bias(normal_values<T>(s.channels, 1.0, 3)),
        dy(normal_values<T>(s.rows * s.channels, 1.0, 4)),
        dresidual(normal_values<T>(s.rows * s.channels, 1.0, 5)),
        y(s.rows * s.channels),
        mean(s.rows),
        rstd(s.rows) {
    run_ops<T>([&](Ops& ops, Stream& stream, OpMemory& on) {
      ops.layernorm_forward(stream, {on(x), on(weight), on(bias), on(y), on(mean), on(rstd), s.rows, s.channels, kEpsilon});
    });
  }

  void backward(GuardedArray<T>& dx, GuardedArray<float>& dweight, GuardedArray<float>& dbias, bool with_residual) {
    run_ops<T>([&](Ops& ops, Stream& stream, OpMemory& on) {
      ops.layernorm_backward(stream, {on(dy), on(x), on(weight), on(mean), on(rstd), on(dresidual, with_residual), on(dx), on(dweight),
                                      on(dbias), shape.rows, shape.channels,
                                      on.scratch(ops.scratch_sizes().layernorm_backward(kDType<T>, shape.rows, shape.channels))});
    });
  }

  Shape shape;
  GuardedArray<T> x, weight, bias, dy, dresidual, y;
  GuardedArray<float> mean, rstd;
};

template <class T>
class LayerNormTest : public testing::Test {};
TYPED_TEST_SUITE(LayerNormTest, StorageTypes);

TYPED_TEST(LayerNormTest, ForwardMatchesFloat64) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    Problem<T> p(s);
    const Doubles x = as_double(p.x.values()), weight = as_double(p.weight.values());
    const Reference expected(x, weight, as_double(p.bias.values()), s);
    Doubles y_allowed, mean_allowed, rstd_allowed;
    for (std::int64_t row = 0; row < s.rows; ++row) {
      const double m = std::fabs(expected.mean[row]), r = expected.rstd[row];
      // A row's values are around 2; its mean is off by a few units of that, everything else follows.
      mean_allowed.push_back(8 * kUnit * (m + 2));
      rstd_allowed.push_back(16 * kUnit * r);
      for (std::int64_t i = 0; i < s.channels; ++i) {
        const std::size_t at = row * s.channels + i;
        y_allowed.push_back(32 * kUnit * (std::fabs(expected.y[at]) + std::fabs(weight[i]) * (1 + r * (std::fabs(x[at]) + 2)) + 4));
      }
    }
    expect_within(p.mean, expected.mean, mean_allowed, "mean " + name(s));
    // One channel has no variance: rstd is 1 / sqrt(epsilon), as exact as the row's mean.
    expect_within(p.rstd, expected.rstd, rstd_allowed, "rstd " + name(s));
    expect_within(p.y, expected.y, y_allowed, "y " + name(s));
  }
}

TYPED_TEST(LayerNormTest, BackwardMatchesFloat64) {
  using T = TypeParam;
  for (const Shape& s : kShapes)
    for (const bool with_residual : {false, true}) {
      Problem<T> p(s);
      const Doubles x = as_double(p.x.values()), w = as_double(p.weight.values()), dy = as_double(p.dy.values());
      const Doubles residual = as_double(p.dresidual.values());
      const Reference forward(x, w, as_double(p.bias.values()), s);
      const double channels = static_cast<double>(s.channels);
      Doubles dx, dx_allowed, dweight(s.channels), dbias(s.channels), dweight_size(s.channels), dbias_size(s.channels);
      for (std::int64_t row = 0; row < s.rows; ++row) {
        const auto h = [&](std::int64_t i) { return (x[row * s.channels + i] - forward.mean[row]) * forward.rstd[row]; };
        double sum_g = 0, sum_gh = 0, size = 0;
        for (std::int64_t i = 0; i < s.channels; ++i) {
          const double d = dy[row * s.channels + i];
          sum_g += d * w[i];
          sum_gh += d * w[i] * h(i);
          size += std::fabs(d * w[i]) * (1 + std::fabs(h(i)));
          dweight[i] += d * h(i);
          dbias[i] += d;
          dweight_size[i] += std::fabs(d) * (1 + std::fabs(h(i)));
          dbias_size[i] += std::fabs(d);
        }
        for (std::int64_t i = 0; i < s.channels; ++i) {
          const std::size_t at = row * s.channels + i;
          const double r = with_residual ? residual[at] : 0.0;
          dx.push_back(forward.rstd[row] * (dy[at] * w[i] - sum_g / channels - h(i) * sum_gh / channels) + r);
          dx_allowed.push_back(32 * kUnit * (std::fabs(r) + forward.rstd[row] * (std::fabs(dy[at] * w[i]) + (1 + std::fabs(h(i))) * size / channels)));
        }
      }
      for (std::int64_t i = 0; i < s.channels; ++i) {
        dweight_size[i] *= 16 * kUnit;
        dbias_size[i] *= 8 * kUnit;
      }
      GuardedArray<T> got_dx(s.rows * s.channels);
      GuardedArray<float> got_dweight(s.channels), got_dbias(s.channels);
      p.backward(got_dx, got_dweight, got_dbias, with_residual);
      expect_within(got_dx, dx, dx_allowed, "dx " + name(s));
      expect_within(got_dweight, dweight, dweight_size, "dweight " + name(s));
      expect_within(got_dbias, dbias, dbias_size, "dbias " + name(s));
    }
}

TYPED_TEST(LayerNormTest, BackwardMayOverwriteItsInputs) {
  using T = TypeParam;
  const Shape s{17, 320};
  Problem<T> p(s);
  GuardedArray<T> dx(s.rows * s.channels);
  GuardedArray<float> dweight(s.channels), dbias(s.channels);
  p.backward(dx, dweight, dbias, true);
  p.backward(p.dy, dweight, dbias, true);
  for (std::size_t i = 0; i < dx.size(); ++i) ASSERT_EQ(to_float(p.dy[i]), to_float(dx[i])) << "over dy, " << i;
  Problem<T> q(s);
  q.backward(q.dresidual, dweight, dbias, true);
  for (std::size_t i = 0; i < dx.size(); ++i) ASSERT_EQ(to_float(q.dresidual[i]), to_float(dx[i])) << "over dresidual, " << i;
}

TYPED_TEST(LayerNormTest, DoesNotDependOnTheNumberOfThreads) {
  using T = TypeParam;
  const Shape s{515, 320};
  expect_same_bits_for_any_thread_count([&] {
    Problem<T> p(s);
    GuardedArray<T> dx(s.rows * s.channels);
    GuardedArray<float> dweight(s.channels), dbias(s.channels);
    p.backward(dx, dweight, dbias, true);
    std::vector<std::byte> bytes;
    append_bytes(bytes, p.y);
    append_bytes(bytes, p.mean);
    append_bytes(bytes, p.rstd);
    append_bytes(bytes, dx);
    append_bytes(bytes, dweight);
    append_bytes(bytes, dbias);
    return bytes;
  });
}

TEST(LayerNorm, BackwardAgreesWithFiniteDifferences) {
  const Shape s{3, 7};
  Problem<float> p(s);
  Doubles x = as_double(p.x.values()), w = as_double(p.weight.values()), bias = as_double(p.bias.values());
  const Doubles dy = as_double(p.dy.values());
  const auto loss = [&] { return dot(Reference(x, w, bias, s).y, dy); };
  GuardedArray<float> dx(s.rows * s.channels), dweight(s.channels), dbias(s.channels);
  p.backward(dx, dweight, dbias, false);
  expect_within(dx, finite_differences(x, loss), Doubles(x.size(), 2e-6), "dx");
  expect_within(dweight, finite_differences(w, loss), Doubles(w.size(), 2e-6), "dweight");
  expect_within(dbias, finite_differences(bias, loss), Doubles(bias.size(), 2e-6), "dbias");
}

}  // namespace
}  // namespace spillway
