#include "base/adam_scalars.h"

#include <cassert>
#include <cmath>

#include "base/default_arithmetic.h"

namespace spillway {

AdamScalars adam_scalars(const AdamParams& p) {
  assert(p.step >= 1);
  const DefaultArithmetic scope;
  const double steps = static_cast<double>(p.step);
  const double correction1 = p.bias_correction ? 1.0 - std::pow(p.beta1, steps) : 1.0;
  const double correction2 = p.bias_correction ? 1.0 - std::pow(p.beta2, steps) : 1.0;
  return AdamScalars{
      .gradient_scale = p.gradient_scale,
      // Without decay both modes are the same; the L2 text would turn -0 into +0 and an infinite master into NaN.
      .decoupled = p.decoupled_decay || p.weight_decay == 0.0,
      .decay_factor = static_cast<float>(1.0 - p.learning_rate * p.weight_decay),
      .weight_decay = static_cast<float>(p.weight_decay),
      .beta1 = static_cast<float>(p.beta1),
      .one_minus_beta1 = static_cast<float>(1.0 - p.beta1),
      .beta2 = static_cast<float>(p.beta2),
      .one_minus_beta2 = static_cast<float>(1.0 - p.beta2),
      .step_size = static_cast<float>(p.learning_rate / correction1),
      .sqrt_correction2 = static_cast<float>(std::sqrt(correction2)),
      .epsilon = static_cast<float>(p.epsilon),
  };
}

}  // namespace spillway
