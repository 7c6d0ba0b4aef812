// The update rules, on one vector of elements: the formulas of spillway/optimizer.h, operation by operation. See kernel.h
// on linkage.
#pragma once

#include "kernels.h"

namespace spillway::cpu_adam {
namespace {

// The scalars, broadcast once per call.
template <class F>
struct Constants {
  explicit Constants(const OptimizerScalars& s)
      : gradient_scale(s.gradient_scale),
        weight_decay(s.weight_decay),
        decay_factor(s.decay_factor),
        beta1(s.beta1),
        one_minus_beta1(s.one_minus_beta1),
        beta2(s.beta2),
        one_minus_beta2(s.one_minus_beta2),
        step_size(s.step_size),
        sqrt_correction2(s.sqrt_correction2),
        epsilon(s.epsilon),
        momentum(s.momentum),
        one_minus_dampening(s.one_minus_dampening),
        has_l2(s.has_l2),
        nesterov(s.nesterov) {}

  F gradient_scale, weight_decay, decay_factor, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_correction2,
      epsilon, momentum, one_minus_dampening;
  bool has_l2, nesterov;
};

// What a rule reads and what it leaves: `gradient` comes scaled, and is scratch; a moment that the kind lacks is untouched.
template <class F>
struct Elements {
  F master, gradient, first, second;
};

template <OptimizerKind kind>
struct UpdateRule;

template <>
struct UpdateRule<OptimizerKind::adam> {
  static constexpr int moments = 2;
  static constexpr MomentLaw laws[] = {MomentLaw::square, MomentLaw::fourth_power};

  template <class Isa, class F>
  static inline __attribute__((always_inline)) void apply(const Constants<F>& k, Elements<F>& e) {
    if (k.has_l2) e.gradient = e.gradient + k.weight_decay * e.master;
    e.first = k.beta1 * e.first + k.one_minus_beta1 * e.gradient;
    e.second = k.beta2 * e.second + (k.one_minus_beta2 * e.gradient) * e.gradient;
    const F denominator = Isa::divide(Isa::sqrt(e.second), k.sqrt_correction2) + k.epsilon;
    e.master = e.master * k.decay_factor - Isa::divide(k.step_size * e.first, denominator);
  }
};

template <>
struct UpdateRule<OptimizerKind::adagrad> {
  static constexpr int moments = 1;
  static constexpr MomentLaw laws[] = {MomentLaw::fourth_power};

  template <class Isa, class F>
  static inline __attribute__((always_inline)) void apply(const Constants<F>& k, Elements<F>& e) {
    if (k.has_l2) e.gradient = e.gradient + k.weight_decay * e.master;
    e.first = e.first + e.gradient * e.gradient;
    e.master = e.master - Isa::divide(k.step_size * e.gradient, Isa::sqrt(e.first) + k.epsilon);
  }
};

template <>
struct UpdateRule<OptimizerKind::lion> {
  static constexpr int moments = 1;
  static constexpr MomentLaw laws[] = {MomentLaw::square};

  template <class Isa, class F>
  static inline __attribute__((always_inline)) void apply(const Constants<F>& k, Elements<F>& e) {
    const F direction = k.beta1 * e.first + k.one_minus_beta1 * e.gradient;
    const F zero(0.0f);
    // A zero of either sign becomes +0, and a NaN stays one.
    const F sign = Isa::select(direction > zero, F(1.0f), Isa::select(direction < zero, F(-1.0f), direction - direction));
    e.master = e.master * k.decay_factor - k.step_size * sign;
    e.first = k.beta2 * e.first + k.one_minus_beta2 * e.gradient;
  }
};

template <>
struct UpdateRule<OptimizerKind::sgd> {
  static constexpr int moments = 0;

  template <class Isa, class F>
  static inline __attribute__((always_inline)) void apply(const Constants<F>& k, Elements<F>& e) {
    if (k.has_l2) e.gradient = e.gradient + k.weight_decay * e.master;
    e.master = e.master - k.step_size * e.gradient;
  }
};

template <>
struct UpdateRule<OptimizerKind::sgd_momentum> {
  static constexpr int moments = 1;
  static constexpr MomentLaw laws[] = {MomentLaw::square};

  template <class Isa, class F>
  static inline __attribute__((always_inline)) void apply(const Constants<F>& k, Elements<F>& e) {
    if (k.has_l2) e.gradient = e.gradient + k.weight_decay * e.master;
    e.first = k.momentum * e.first + k.one_minus_dampening * e.gradient;
    e.master = e.master - k.step_size * (k.nesterov ? e.gradient + k.momentum * e.first : e.first);
  }
};

}  // namespace
}  // namespace spillway::cpu_adam
