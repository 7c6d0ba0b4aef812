// The optimizers against their formulas in float64, element by element, with a bound derived operation by operation: each
// f32 operation may err by half an ulp of its result, and carries its operands' errors on (Wilkinson's running error
// analysis). The bound is so a proof, not a fitted tolerance. Moments are f32 here; what becomes of them in other formats,
// optimizer_moments_test.cpp looks at.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "spillway/optimizer.h"
#include "support/optimizer_arrays.h"

namespace spillway {
namespace {

using test::OptimizerArrays;
using test::OptimizerVariant;

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
  Bounded master;
  Bounded moments[kMaxMoments];
};

// The formulas of the papers named in the header, with the scalars that it says are rounded once.
class Oracle {
 public:
  Oracle(const OptimizerParams& params, double master, const double* moments, double gradient)
      : p_(params), theta_(exact(master)), moments_(moments), g_(exact(params.gradient_scale) * exact(gradient)) {
    const bool decoupled = p_.kind == OptimizerKind::lion || (p_.kind == OptimizerKind::adam && p_.decoupled_decay);
    if (decoupled) theta_ = scalar(1.0 - p_.learning_rate * p_.weight_decay) * theta_;
    if (!decoupled && p_.weight_decay != 0) g_ = g_ + scalar(p_.weight_decay) * theta_;
  }

  Expected step() const {
    switch (p_.kind) {
      case OptimizerKind::adam: return adam();
      case OptimizerKind::adagrad: return adagrad();
      case OptimizerKind::lion: return lion();
      case OptimizerKind::sgd: return {theta_ - scalar(p_.learning_rate) * g_, {}};
      case OptimizerKind::sgd_momentum: return sgd_momentum();
    }
    return {};
  }

 private:
  Expected adam() const {
    const double steps = static_cast<double>(p_.step);
    const double correction1 = p_.bias_correction ? 1.0 - std::pow(p_.beta1, steps) : 1.0;
    const double correction2 = p_.bias_correction ? 1.0 - std::pow(p_.beta2, steps) : 1.0;
    const Bounded m = scalar(p_.beta1) * exact(moments_[0]) + scalar(1.0 - p_.beta1) * g_;
    const Bounded v = scalar(p_.beta2) * exact(moments_[1]) + scalar(1.0 - p_.beta2) * g_ * g_;
    const Bounded denominator = square_root(v) / scalar(std::sqrt(correction2)) + scalar(p_.epsilon);
    return {theta_ - scalar(p_.learning_rate / correction1) * m / denominator, {m, v}};
  }
  Expected adagrad() const {
    const Bounded rate = scalar(p_.learning_rate / (1.0 + static_cast<double>(p_.step - 1) * p_.learning_rate_decay));
    const Bounded sum = exact(moments_[0]) + g_ * g_;
    return {theta_ - rate * g_ / (square_root(sum) + scalar(p_.epsilon)), {sum, {}}};
  }
  Expected lion() const {
    const Bounded direction = scalar(p_.beta1) * exact(moments_[0]) + scalar(1.0 - p_.beta1) * g_;
    // Whether a direction within its error of zero is up or down, the oracle cannot say.
    const bool known = std::fabs(direction.value) > direction.error || (direction.value == 0 && g_.value == 0 && moments_[0] == 0);
    const double sign = direction.value > 0 ? 1 : direction.value < 0 ? -1 : 0;
    const Bounded step = known ? scalar(p_.learning_rate) * exact(sign) : Bounded{0, 1.001 * p_.learning_rate};
    return {theta_ - step, {scalar(p_.beta2) * exact(moments_[0]) + scalar(1.0 - p_.beta2) * g_, {}}};
  }
  Expected sgd_momentum() const {
    const Bounded fresh = scalar(p_.step == 1 ? 1.0 : 1.0 - p_.dampening) * g_;
    const Bounded buffer = scalar(p_.momentum) * exact(moments_[0]) + fresh;
    const Bounded direction = p_.nesterov ? g_ + scalar(p_.momentum) * buffer : buffer;
    return {theta_ - scalar(p_.learning_rate) * direction, {buffer, {}}};
  }

  const OptimizerParams& p_;
  Bounded theta_;
  const double* moments_;
  Bounded g_;
};

testing::AssertionResult within(std::string_view what, float actual, Bounded expected) {
  const double a = static_cast<double>(actual);
  const bool holds = std::isnan(expected.value)   ? std::isnan(a)
                     : std::isinf(expected.value) ? a == expected.value
                                                  : std::fabs(a - expected.value) <= expected.error;
  if (holds) return testing::AssertionSuccess();
  return testing::AssertionFailure() << what << " is " << a << ", expected " << expected.value << " +- " << expected.error;
}

// One update from the arrays' own state, every element against the oracle.
testing::AssertionResult update_agrees(std::string_view isa, OptimizerArrays& arrays, const OptimizerParams& p) {
  const OptimizerVariant& variant = arrays.variant;
  const OptimizerArrays before = arrays;
  optimizer_update_with(isa, arrays.tile(), p);
  for (std::int64_t i = 0; i < arrays.n; ++i) {
    double moments[kMaxMoments] = {};
    for (std::size_t m = 0; m < variant.num_moments(); ++m) moments[m] = static_cast<double>(before.moments[m].get<float>(i));
    const Expected expected = Oracle(p, before.master_at(i), moments, before.gradient_at(i)).step();
    auto result = within("master", arrays.master_at(i), expected.master);
    for (std::size_t m = 0; result && m < variant.num_moments(); ++m) {
      result = within(traits_of(variant.kind).moments[m].name, arrays.moments[m].get<float>(i), expected.moments[m]);
    }
    if (!result) return result << " (step " << p.step << ", element " << i << ")";
    if (!variant.weight || variant.split) continue;
    const float weight = rounded_to(*variant.weight, arrays.master_at(i));
    if (weight == arrays.weight_at(i) || std::isnan(weight)) continue;
    return testing::AssertionFailure() << "step " << p.step << " element " << i << ": weight is " << arrays.weight_at(i)
                                       << ", master rounds to " << weight;
  }
  return testing::AssertionSuccess();
}

// Every choice there is among the hyper-parameters of a kind.
std::vector<OptimizerParams> all_params(OptimizerKind kind) {
  std::vector<OptimizerParams> all;
  for (const bool decoupled : {true, false}) {
    for (const bool other : {true, false}) {
      OptimizerParams p;
      p.kind = kind;
      p.learning_rate = 0.1;
      p.weight_decay = 0.5;
      p.decoupled_decay = decoupled;
      p.bias_correction = other;
      p.momentum = 0.9;
      p.dampening = decoupled ? 0.25 : 0.0;
      p.nesterov = other;
      p.learning_rate_decay = 0.01;
      p.gradient_scale = 0.37f;
      all.push_back(p);
    }
  }
  return all;
}

struct Case {
  std::string isa;
  OptimizerKind kind;
};

class OptimizerOracle : public testing::TestWithParam<Case> {
 protected:
  std::vector<OptimizerVariant> variants() const { return test::variants_of(GetParam().kind, MomentFormat::f32); }
};

TEST_P(OptimizerOracle, AgreesOverAHundredSteps) {
  for (const OptimizerVariant& variant : variants()) {
    for (OptimizerParams p : all_params(variant.kind)) {
      OptimizerArrays arrays(variant, 33, 3);
      arrays.fill_state(1);
      for (p.step = 1; p.step <= 100; ++p.step) {
        if (p.step % 10 == 1) arrays.fill_gradient(static_cast<std::uint32_t>(p.step), 1e-2f);
        ASSERT_TRUE(update_agrees(GetParam().isa, arrays, p)) << variant.name();
      }
    }
  }
}

TEST_P(OptimizerOracle, AgreesWhereTheArithmeticIsExtreme) {
  static constexpr float kGradients[] = {0.0f, -0.0f, 1e-45f, -1e-45f, 7e-40f, 1.1754944e-38f, 5.9604645e-8f,
                                         -6.1e-5f, 65504.0f, -65504.0f, 1.8e19f, 3e38f, 3.4028235e38f, -3.4028235e38f};
  for (const OptimizerVariant& variant : variants()) {
    for (OptimizerParams p : all_params(variant.kind)) {
      OptimizerArrays arrays(variant, std::size(kGradients) * 3, 1);
      arrays.fill_state(4);
      for (std::int64_t i = 0; i < arrays.n; ++i) {
        arrays.set_gradient(i, kGradients[i / 3]);
        if (std::isinf(arrays.gradient_at(i))) arrays.set_gradient(i, 1.0f);  // out of an f16's range
        if (i % 3 == 0) continue;
        arrays.set_master(i, i % 3 == 1 ? -0.0f : 3e-42f);
        for (std::size_t m = 0; m < arrays.moments.size(); ++m) {
          const float subnormal = variant.law(m) == MomentLaw::square ? -5e-43f : 2e-41f;
          arrays.moments[m].set(i, i % 3 == 1 ? 0.0f : subnormal);
        }
      }
      p.epsilon = p.decoupled_decay ? 1e-8 : p.bias_correction ? 1.0 : 1e3;
      p.gradient_scale = 1.0f;
      for (p.step = 1; p.step <= 3; ++p.step) ASSERT_TRUE(update_agrees(GetParam().isa, arrays, p)) << variant.name();
    }
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const std::string_view isa : available_isas()) {
    for (const OptimizerKind kind : test::kAllKinds) all.push_back({std::string(isa), kind});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Available, OptimizerOracle, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.isa + "_" + std::string(traits_of(info.param.kind).name); });

TEST(OptimizerOracleLarge, AgreesOnALargeTile) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    OptimizerArrays arrays({OptimizerKind::adam, MomentFormat::f32, dtype, dtype, false}, (1 << 20) + 3, 0);
    arrays.fill_state(2);
    arrays.fill_gradient(3, 1e-2f);
    EXPECT_TRUE(update_agrees(active_isa(), arrays, all_params(OptimizerKind::adam)[0])) << arrays.variant.name();
  }
}

// What the derived bound amounts to: a few ulp wherever nothing cancels.
TEST(OptimizerOracleBound, IsAFewUlp) {
  for (const OptimizerKind kind : test::kAllKinds) {
    const double moments[] = {1e-3, 1e-4};
    OptimizerParams p = all_params(kind)[0];
    p.learning_rate = 1e-3;
    const Expected e = Oracle(p, 0.05, moments, 1e-2).step();
    EXPECT_LT(e.master.error / std::fabs(e.master.value), 20 * kHalfUlp);
    for (std::size_t m = 0; m < traits_of(kind).moments.size(); ++m) {
      EXPECT_LT(e.moments[m].error / e.moments[m].value, 10 * kHalfUlp);
    }
  }
}

}  // namespace
}  // namespace spillway
