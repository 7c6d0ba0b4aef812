// The update rules of spillway/optimizer.h for one element, operation by operation: each rounded once and none fused, hence
// the CPU's bits. Square root and division are the correctly rounded ones, and subnormals are kept (nvcc's default; -ftz
// would lose them).
#pragma once

#include "base/optimizer_scalars.h"
#include "intrinsics/math.h"
#include "spillway/optimizer.h"

namespace spillway::cuda {

// `gradient` comes scaled, and is scratch; a moment that the kind lacks is untouched.
struct Elements {
  float master, gradient, first, second;
};

namespace rules {

using gpu::add_rn;
using gpu::div_rn;
using gpu::mul_rn;
using gpu::sqrt_rn;
using gpu::sub_rn;

// a * x + b * y
__device__ inline float blend(float a, float x, float b, float y) { return add_rn(mul_rn(a, x), mul_rn(b, y)); }

__device__ inline void add_l2(const OptimizerScalars& k, Elements& e) {
  if (k.has_l2) e.gradient = add_rn(e.gradient, mul_rn(k.weight_decay, e.master));
}

}  // namespace rules

template <OptimizerKind kind>
struct UpdateRule;

template <>
struct UpdateRule<OptimizerKind::adam> {
  static constexpr int kMoments = 2;
  static constexpr MomentLaw kLaws[] = {MomentLaw::square, MomentLaw::fourth_power};

  static __device__ void apply(const OptimizerScalars& k, Elements& e) {
    using namespace rules;
    add_l2(k, e);
    e.first = blend(k.beta1, e.first, k.one_minus_beta1, e.gradient);
    e.second = add_rn(mul_rn(k.beta2, e.second), mul_rn(mul_rn(k.one_minus_beta2, e.gradient), e.gradient));
    const float denominator = add_rn(div_rn(sqrt_rn(e.second), k.sqrt_correction2), k.epsilon);
    e.master = sub_rn(mul_rn(e.master, k.decay_factor), div_rn(mul_rn(k.step_size, e.first), denominator));
  }
};

template <>
struct UpdateRule<OptimizerKind::adagrad> {
  static constexpr int kMoments = 1;
  static constexpr MomentLaw kLaws[] = {MomentLaw::fourth_power};

  static __device__ void apply(const OptimizerScalars& k, Elements& e) {
    using namespace rules;
    add_l2(k, e);
    e.first = add_rn(e.first, mul_rn(e.gradient, e.gradient));
    e.master = sub_rn(e.master, div_rn(mul_rn(k.step_size, e.gradient), add_rn(sqrt_rn(e.first), k.epsilon)));
  }
};

template <>
struct UpdateRule<OptimizerKind::lion> {
  static constexpr int kMoments = 1;
  static constexpr MomentLaw kLaws[] = {MomentLaw::square};

  static __device__ void apply(const OptimizerScalars& k, Elements& e) {
    using namespace rules;
    const float direction = blend(k.beta1, e.first, k.one_minus_beta1, e.gradient);
    // A zero of either sign becomes +0, and a NaN stays one.
    const float sign = direction > 0.0f ? 1.0f : direction < 0.0f ? -1.0f : sub_rn(direction, direction);
    e.master = sub_rn(mul_rn(e.master, k.decay_factor), mul_rn(k.step_size, sign));
    e.first = blend(k.beta2, e.first, k.one_minus_beta2, e.gradient);
  }
};

template <>
struct UpdateRule<OptimizerKind::sgd> {
  static constexpr int kMoments = 0;

  static __device__ void apply(const OptimizerScalars& k, Elements& e) {
    using namespace rules;
    add_l2(k, e);
    e.master = sub_rn(e.master, mul_rn(k.step_size, e.gradient));
  }
};

template <>
struct UpdateRule<OptimizerKind::sgd_momentum> {
  static constexpr int kMoments = 1;
  static constexpr MomentLaw kLaws[] = {MomentLaw::square};

  static __device__ void apply(const OptimizerScalars& k, Elements& e) {
    using namespace rules;
    add_l2(k, e);
    e.first = blend(k.momentum, e.first, k.one_minus_dampening, e.gradient);
    const float step = k.nesterov ? add_rn(e.gradient, mul_rn(k.momentum, e.first)) : e.first;
    e.master = sub_rn(e.master, mul_rn(k.step_size, step));
  }
};

}  // namespace spillway::cuda
