// Tied projection with cross-entropy against a float64 reference, itself held against finite differences.
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
constexpr float kGradientScale = 0.25f;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

struct Gradients {
  std::vector<double> dx, dweight;
  std::vector<double> dx_rounding, dweight_rounding;
};

// The definition, term by term.
struct Reference {
  LossHeadDims dims;
  std::vector<double> x, weight;
  std::vector<std::int32_t> targets;

  std::vector<double> probabilities(std::int64_t row, double* loss) const {
    std::vector<double> p(size(dims.vocabulary));
    double largest = -HUGE_VAL, sum = 0.0;
    for (std::int64_t v = 0; v < dims.vocabulary; ++v) {
      for (std::int64_t c = 0; c < dims.channels; ++c) {
        p[size(v)] += x[size(row * dims.channels + c)] * weight[size(v * dims.channels + c)];
      }
      largest = std::max(largest, p[size(v)]);
    }
    const double target_logit = p[size(targets[size(row)])];
    for (double& value : p) sum += value = std::exp(value - largest);
    for (double& value : p) value /= sum;
    *loss = std::log(sum) + largest - target_logit;
    return p;
  }

  double loss() const {
    double total = 0.0, row_loss;
    for (std::int64_t row = 0; row < dims.rows; ++row) {
      if (targets[size(row)] < 0) continue;
      probabilities(row, &row_loss);
      total += row_loss;
    }
    return total;
  }

  // The gradients, and how far from them the rounding of dlogits may lead on a device that stores those in a dtype of
  // so much relative and absolute rounding.
  Gradients backward(double scale, double relative = 0.0, double absolute = 0.0) const {
    Gradients g{std::vector<double>(x.size()), std::vector<double>(weight.size()), std::vector<double>(x.size()),
                std::vector<double>(weight.size())};
    double unused;
    for (std::int64_t row = 0; row < dims.rows; ++row) {
      if (targets[size(row)] < 0) continue;
      auto dlogits = probabilities(row, &unused);
      dlogits[size(targets[size(row)])] -= 1.0;
      for (std::int64_t v = 0; v < dims.vocabulary; ++v) {
        const double gradient = scale * dlogits[size(v)], rounding = relative * std::fabs(gradient) + absolute;
        for (std::int64_t c = 0; c < dims.channels; ++c) {
          const std::size_t of_x = size(row * dims.channels + c), of_weight = size(v * dims.channels + c);
          g.dx[of_x] += gradient * weight[of_weight];
          g.dweight[of_weight] += gradient * x[of_x];
          g.dx_rounding[of_x] += rounding * std::fabs(weight[of_weight]);
          g.dweight_rounding[of_weight] += rounding * std::fabs(x[of_x]);
        }
      }
    }
    return g;
  }
};

// The CUDA device keeps dlogits in T, for its tensor cores; the host in f32.
template <class T>
Gradients gradients_of(const Reference& reference) {
  if (!test::on_cuda()) return reference.backward(kGradientScale);
  return reference.backward(kGradientScale, test::kRoundoff<T>, test::kSmallestRounding<T>);
}

template <class T>
struct Inputs {
  LossHeadDims dims;
  std::vector<T> x, weight;
  std::vector<std::int32_t> targets;

  Reference reference() const { return {dims, test::as_double(x), test::as_double(weight), targets}; }
};

template <class T>
Inputs<T> random_inputs(const LossHeadDims& dims) {
  Inputs<T> in{dims, normal_values<T>(dims.rows * dims.channels, 1.0, 3),
               normal_values<T>(dims.vocabulary * dims.channels, 0.3, 4), {}};
  std::mt19937 generator(5);
  for (std::int64_t row = 0; row < dims.rows; ++row) {
    const auto target = static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(dims.vocabulary));
    in.targets.push_back(row % 7 == 3 ? -1 : target);
  }
  return in;
}

template <class T>
struct Run {
  double loss;
  std::vector<T> dx;
  std::vector<float> dweight;
};

// On guarded memory; without gradients if `loss_only`.
template <class T>
Run<T> run(const Inputs<T>& in, bool loss_only = false) {
  GuardedArray<T> x(in.x), weight(in.weight), dx(in.x.size());
  GuardedArray<std::int32_t> targets(in.targets);
  GuardedArray<float> dweight(in.weight.size());
  GuardedArray<double> loss(1);
  test::run_ops<T>([&](Ops& ops, Stream& stream, test::OpMemory& on) {
    ops.loss_head(stream, {.x = on(x),
                           .weight = on(weight),
                           .targets = on(targets),
                           .gradient_scale = kGradientScale,
                           .loss_sum = on(loss),
                           .dx = on(dx, !loss_only),
                           .dweight = on(dweight, !loss_only),
                           .dims = in.dims,
                           .scratch = on.scratch(ops.scratch_sizes().loss_head(test::kDType<T>, in.dims))});
  });
  return {loss[0], dx.values(), dweight.values()};
}

const LossHeadDims kShapes[] = {{1, 8, 7},    {5, 32, 256},  {65, 64, 7},
                                {33, 24, 1000}, {600, 16, 256}, {4100, 4, 7},  // several chunks: on the host, on a CUDA device
                                {3, 8, 70001}};                // a vocabulary of many sum blocks

template <class T>
class LossHeadOp : public testing::Test {};
using StorageTypes = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(LossHeadOp, StorageTypes);

TYPED_TEST(LossHeadOp, MatchesReference) {
  for (const LossHeadDims& dims : kShapes) {
    const std::string name = "rows " + std::to_string(dims.rows) + " V " + std::to_string(dims.vocabulary);
    const auto in = random_inputs<TypeParam>(dims);
    const Reference reference = in.reference();
    const Gradients expected = gradients_of<TypeParam>(reference);
    const double loss = reference.loss();
    const auto got = run(in);
    EXPECT_NEAR(got.loss, loss, 1e-6 * loss) << name;
    expect_close<TypeParam>(got.dx, expected.dx, kBound, "dx, " + name, expected.dx_rounding);
    expect_close<float>(got.dweight, expected.dweight, kBound, "dweight, " + name, expected.dweight_rounding);
    EXPECT_EQ(run(in, true).loss, got.loss) << name;
  }
}

TYPED_TEST(LossHeadOp, GradientIsThatOfFiniteDifferences) {
  const auto in = random_inputs<TypeParam>({5, 8, 7});
  Reference reference = in.reference();
  constexpr double kStep = 1e-5;
  const auto numeric = [&](std::vector<double>& values) {
    std::vector<double> gradient(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double original = values[i];
      values[i] = original + kStep;
      const double above = reference.loss();
      values[i] = original - kStep;
      gradient[i] = kGradientScale * (above - reference.loss()) / (2 * kStep);
      values[i] = original;
    }
    return gradient;
  };
  const auto got = run(in);
  const Gradients expected = gradients_of<TypeParam>(reference);
  expect_close<TypeParam>(got.dx, numeric(reference.x), kBound, "dx", expected.dx_rounding);
  expect_close<float>(got.dweight, numeric(reference.weight), kBound, "dweight", expected.dweight_rounding);
}

TYPED_TEST(LossHeadOp, IgnoredTargetsHaveNoLossAndNoGradient) {
  auto in = random_inputs<TypeParam>({6, 8, 7});
  for (auto& target : in.targets) target = -1;
  const auto got = run(in);
  EXPECT_EQ(got.loss, 0.0);
  for (const auto value : got.dx) EXPECT_EQ(to_float(value), 0.0f);
  for (const float value : got.dweight) EXPECT_EQ(value, 0.0f);
}

TYPED_TEST(LossHeadOp, BitsDoNotDependOnThreadCount) {
  const auto in = random_inputs<TypeParam>({test::on_cuda() ? 110 : 1100, 40, 1000});
  test::expect_same_bits_for_any_thread_count([&] {
    const auto got = run(in);
    std::vector<std::byte> bytes;
    test::append_bytes(bytes, std::vector<double>{got.loss});
    test::append_bytes(bytes, got.dx);
    test::append_bytes(bytes, got.dweight);
    return bytes;
  });
}

TYPED_TEST(LossHeadOp, NonFiniteInputReachesLoss) {
  auto in = random_inputs<TypeParam>({2, 8, 7});
  in.x[0] = from_float<TypeParam>(HUGE_VALF);
  EXPECT_FALSE(std::isfinite(run(in).loss));
}

TEST(LossHeadScratch, StaysFarBelowFullLogits) {
  // 8 x 1024 tokens of gpt2-xl: the full logits would be 1.6 GB.
  EXPECT_LT(host_scratch_sizes().loss_head(DType::bf16, {8192, 1600, 50257}), 64 << 20);
}

}  // namespace
}  // namespace spillway
