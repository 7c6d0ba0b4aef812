// The CPU Adam against the formulas in float64, element by element, with a bound derived operation by
// operation: each f32 operation may err by half an ulp of its result, and carries its operands' errors on
// (Wilkinson's running error analysis). The bound is so a proof, not a fitted tolerance.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cpu_adam_arrays.h"
#include "spillway/cpu_adam.h"

namespace spillway {
namespace {

constexpr double kHalfUlp = 0x1p-24;             // relative, of a normal f32 result
constexpr double kHalfSmallest = 0x1p-150;       // absolute, of a subnormal one
constexpr double kLargest = std::numeric_limits<float>::max();

// An exact value, and how far an f32 computation of it may be off.
struct Bounded {
  double value;
  double error;
};

Bounded rounded(double value, double carried) {
  if (std::fabs(value) > kLargest) return {std::copysign(HUGE_VAL, value), 0.0};
  return {value, carried + kHalfUlp * (std::fabs(value) + carried) + kHalfSmallest};
}
Bounded exact(double value) { return {value, 0.0}; }
Bounded scalar(double value) { return rounded(value, 0.0); }

Bounded operator+(Bounded a, Bounded b) { return rounded(a.value + b.value, a.error + b.error); }
Bounded operator-(Bounded a, Bounded b) { return rounded(a.value - b.value, a.error + b.error); }
Bounded operator*(Bounded a, Bounded b) {
  return rounded(a.value * b.value,
                 std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error);
}
Bounded operator/(Bounded a, Bounded b) {
  const double quotient = a.value / b.value;
  if (std::isinf(b.value)) return {quotient, 0.0};
  return rounded(quotient, (a.error + std::fabs(quotient) * b.error) / (std::fabs(b.value) - b.error));
}
Bounded square_root(Bounded a) {
  const double root = std::sqrt(a.value);
  if (std::isinf(root)) return {root, 0.0};
  return rounded(root, std::max(std::sqrt(a.value + a.error) - root, root - std::sqrt(std::max(0.0, a.value - a.error))));
}

float rounded_to(DType dtype, float x) {
  switch (dtype) {
    case DType::f32: return x;
    case DType::bf16: return round_to<bf16>(x);
    case DType::f16: return round_to<f16>(x);
  }
  return 0;
}

struct Expected {
  Bounded master, exp_avg, exp_avg_sq;
};

// The formulas of Kingma and Ba (2015), and of Loshchilov and Hutter (2019) for decoupled decay.
Expected oracle(double master, double exp_avg, double exp_avg_sq, double gradient, const AdamParams& p) {
  const double steps = static_cast<double>(p.step);
  const double correction1 = p.bias_correction ? 1.0 - std::pow(p.beta1, steps) : 1.0;
  const double correction2 = p.bias_correction ? 1.0 - std::pow(p.beta2, steps) : 1.0;
  Bounded theta = exact(master);
  Bounded g = exact(p.gradient_scale) * exact(gradient);
  if (p.decoupled_decay) {
    theta = scalar(1.0 - p.learning_rate * p.weight_decay) * theta;
  } else {
    g = g + scalar(p.weight_decay) * theta;
  }
  const Bounded m = scalar(p.beta1) * exact(exp_avg) + scalar(1.0 - p.beta1) * g;
  const Bounded v = scalar(p.beta2) * exact(exp_avg_sq) + scalar(1.0 - p.beta2) * g * g;
  const Bounded denominator = square_root(v) / scalar(std::sqrt(correction2)) + scalar(p.epsilon);
  return {theta - scalar(p.learning_rate / correction1) * m / denominator, m, v};
}

testing::AssertionResult within(const char* what, float actual, Bounded expected) {
  const double a = static_cast<double>(actual);
  if (std::isinf(expected.value) ? a == expected.value : std::fabs(a - expected.value) <= expected.error) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << what << " is " << a << ", expected " << expected.value << " +- "
                                     << expected.error;
}

// One update from the arrays' own state, every element against the oracle.
testing::AssertionResult update_agrees(AdamArrays& arrays, const AdamParams& p) {
  const AdamArrays before = arrays;
  adam_update(arrays.tile(), p);
  for (std::int64_t i = 0; i < arrays.n; ++i) {
    const Expected expected = oracle(before.master.value(i), before.exp_avg.value(i), before.exp_avg_sq.value(i),
                                     before.gradient.value(i), p);
    auto result = within("master", arrays.master.value(i), expected.master);
    if (result) result = within("exp_avg", arrays.exp_avg.value(i), expected.exp_avg);
    if (result) result = within("exp_avg_sq", arrays.exp_avg_sq.value(i), expected.exp_avg_sq);
    if (!result) return result << " (step " << p.step << ", element " << i << ")";
    if (!arrays.types.has_weight) continue;
    const float weight = rounded_to(arrays.types.weight, arrays.master.value(i));
    if (weight != arrays.weight.value(i)) {
      return testing::AssertionFailure() << "step " << p.step << " element " << i << ": weight is "
                                         << arrays.weight.value(i) << ", master rounds to " << weight;
    }
  }
  return testing::AssertionSuccess();
}

AdamParams params(bool decoupled, bool bias_correction) {
  return {.learning_rate = 0.1,
          .beta1 = 0.9,
          .beta2 = 0.999,
          .epsilon = 1e-8,
          .weight_decay = 0.5,
          .decoupled_decay = decoupled,
          .bias_correction = bias_correction,
          .step = 1,
          .gradient_scale = 0.37f};
}

class CpuAdamOracle : public testing::TestWithParam<AdamTypes> {};

TEST_P(CpuAdamOracle, AgreesOverAHundredSteps) {
  for (const bool decoupled : {true, false}) {
    for (const bool bias_correction : {true, false}) {
      AdamParams p = params(decoupled, bias_correction);
      for (const std::int64_t n : {0, 1, 7, 15, 16, 17, 31, 33, 127}) {
        for (int misalignment = 0; misalignment < 16; ++misalignment) {
          AdamArrays arrays(GetParam(), n, misalignment);
          arrays.fill_state(1);
          // The trajectory does not depend on the misalignment, which has a test of its own.
          const std::int64_t steps = misalignment == 0 ? 100 : 10;
          for (p.step = 1; p.step <= steps; ++p.step) {
            if (p.step % 10 == 1) arrays.fill_gradient(static_cast<std::uint32_t>(p.step), 1e-2f);
            ASSERT_TRUE(update_agrees(arrays, p)) << "n " << n << " misalignment " << misalignment;
          }
        }
      }
    }
  }
}

TEST_P(CpuAdamOracle, AgreesWhereTheArithmeticIsExtreme) {
  static constexpr float kGradients[] = {0.0f, -0.0f, 1e-45f, -1e-45f, 7e-40f, 1.1754944e-38f, 5.9604645e-8f,
                                         -6.1e-5f, 65504.0f, -65504.0f, 1.8e19f, 3e38f, 3.4028235e38f, -3.4028235e38f};
  for (const bool decoupled : {true, false}) {
    for (const double epsilon : {1e-8, 1.0, 1e3}) {
      AdamArrays arrays(GetParam(), std::size(kGradients) * 3, 1);
      arrays.fill_state(4);
      for (std::int64_t i = 0; i < arrays.n; ++i) {
        arrays.gradient.set(i, kGradients[i / 3]);
        if (std::isinf(arrays.gradient.value(i))) arrays.gradient.set(i, 1.0f);  // out of an f16's range
        if (i % 3 == 1) {
          arrays.master.set(i, -0.0f);
          arrays.exp_avg.set(i, 0.0f);
          arrays.exp_avg_sq.set(i, 0.0f);
        }
        if (i % 3 == 2) {
          arrays.master.set(i, 3e-42f);
          arrays.exp_avg.set(i, -5e-43f);
          arrays.exp_avg_sq.set(i, 2e-41f);
        }
      }
      AdamParams p = params(decoupled, true);
      p.epsilon = epsilon;
      p.gradient_scale = 1.0f;
      for (p.step = 1; p.step <= 3; ++p.step) {
        ASSERT_TRUE(update_agrees(arrays, p)) << "epsilon " << epsilon << " decoupled " << decoupled;
      }
    }
  }
}

TEST(CpuAdamOracleLarge, AgreesOnALargeTile) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    AdamArrays arrays({dtype, dtype, true}, 1'000'003, 0);
    arrays.fill_state(2);
    arrays.fill_gradient(3, 1e-2f);
    EXPECT_TRUE(update_agrees(arrays, params(true, true))) << arrays.types.name();
  }
}

// What the derived bound amounts to: a few ulp wherever nothing cancels.
TEST(CpuAdamOracleBound, IsAFewUlp) {
  const Expected e = oracle(0.05, 1e-3, 1e-4, 1e-2, params(true, true));
  EXPECT_LT(e.exp_avg.error / e.exp_avg.value, 5 * kHalfUlp);
  EXPECT_LT(e.exp_avg_sq.error / e.exp_avg_sq.value, 7 * kHalfUlp);
  EXPECT_LT(e.master.error / std::fabs(e.master.value), 20 * kHalfUlp);
}

INSTANTIATE_TEST_SUITE_P(Types, CpuAdamOracle, testing::ValuesIn(all_adam_types()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace spillway
