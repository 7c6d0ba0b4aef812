#include "base/optimizer_scalars.h"

#include <cassert>
#include <cmath>

#include "base/default_arithmetic.h"
#include "spillway/optimizer.h"

namespace spillway {
namespace {

void set_betas(const OptimizerParams& p, OptimizerScalars& s) {
  s.beta1 = static_cast<float>(p.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - p.beta1);
  s.beta2 = static_cast<float>(p.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - p.beta2);
}

void set_adam(const OptimizerParams& p, OptimizerScalars& s) {
  const double steps = static_cast<double>(p.step);
  const double correction1 = p.bias_correction ? 1.0 - std::pow(p.beta1, steps) : 1.0;
  const double correction2 = p.bias_correction ? 1.0 - std::pow(p.beta2, steps) : 1.0;
  set_betas(p, s);
  s.step_size = static_cast<float>(p.learning_rate / correction1);
  s.sqrt_correction2 = static_cast<float>(std::sqrt(correction2));
  s.epsilon = static_cast<float>(p.epsilon);
}

void set_adagrad(const OptimizerParams& p, OptimizerScalars& s) {
  s.step_size = static_cast<float>(p.learning_rate / (1.0 + static_cast<double>(p.step - 1) * p.learning_rate_decay));
  s.epsilon = static_cast<float>(p.epsilon);
}

void set_momentum(const OptimizerParams& p, OptimizerScalars& s) {
  s.momentum = static_cast<float>(p.momentum);
  s.one_minus_dampening = p.step == 1 ? 1.0f : static_cast<float>(1.0 - p.dampening);
  s.nesterov = p.nesterov;
}

}  // namespace

OptimizerScalars optimizer_scalars(const OptimizerParams& p, std::uint64_t position) {
  assert(p.step >= 1);
  const DefaultArithmetic scope;
  const bool decoupled = p.kind == OptimizerKind::lion || (p.kind == OptimizerKind::adam && p.decoupled_decay);
  OptimizerScalars s{};
  s.gradient_scale = p.gradient_scale;
  // Without decay the L2 text would turn -0 into +0 and an infinite master into NaN.
  s.has_l2 = !decoupled && p.weight_decay != 0.0;
  s.weight_decay = static_cast<float>(p.weight_decay);
  s.decay_factor = decoupled ? static_cast<float>(1.0 - p.learning_rate * p.weight_decay) : 1.0f;
  s.step_size = static_cast<float>(p.learning_rate);
  s.keys = rounding_keys(p.seed, p.step, position);
  switch (p.kind) {
    case OptimizerKind::adam: set_adam(p, s); break;
    case OptimizerKind::adagrad: set_adagrad(p, s); break;
    case OptimizerKind::lion: set_betas(p, s); break;
    case OptimizerKind::sgd: break;
    case OptimizerKind::sgd_momentum: set_momentum(p, s); break;
  }
  return s;
}

}  // namespace spillway
