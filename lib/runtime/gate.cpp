#include "runtime/gate.h"

#include <algorithm>
#include <cmath>

#include "optim/clipping.h"
#include "optim/schedule.h"

namespace spillway {

namespace {

double counted_tokens(const GateInput& input) { return static_cast<double>(std::max<std::int64_t>(1, input.tokens)); }

}  // namespace

Gate::Gate(const Config& config) : config_(config), scaler_(config.dtype, config.loss_scale) {}

void Gate::restore(const GateState& state) {
  scaler_.restore(state.scaler);
  applied_steps_ = state.applied_steps;
  skipped_steps_ = state.skipped_steps;
}

double Gate::gradient_factor(const GateInput& input) const {
  return scaler_.scale() * (counted_tokens(input) / static_cast<double>(input.planned_tokens));
}

GateVerdict Gate::decide(const GateInput& input) {
  GateVerdict verdict;
  const OptimizerConfig& optimizer = config_.optimizer;
  const double scaled_norm = global_norm(input.square_sums);
  const bool overflow = !std::isfinite(scaled_norm);
  const double factor = gradient_factor(input);
  verdict.loss = input.loss_sum / counted_tokens(input);
  verdict.loss_scale = scaler_.scale();
  verdict.gradient_norm = scaled_norm / factor;
  verdict.learning_rate = learning_rate(config_.scheduler, optimizer.learning_rate, applied_steps_);
  verdict.adam.gradient_scale = overflow ? 0.0f : gradient_scale(scaled_norm, factor, config_.gradient_clipping);
  verdict.scaling = scaler_.update(overflow);
  verdict.skip = verdict.scaling.skipped;
  if (verdict.skip) {
    ++skipped_steps_;
    const auto bad = std::find_if(input.square_sums.begin(), input.square_sums.end(), [](double sum) { return !std::isfinite(sum); });
    if (bad != input.square_sums.end()) verdict.first_bad_piece = bad - input.square_sums.begin();
    return verdict;
  }
  ++applied_steps_;
  verdict.adam.learning_rate = verdict.learning_rate;
  verdict.adam.beta1 = optimizer.beta1;
  verdict.adam.beta2 = optimizer.beta2;
  verdict.adam.epsilon = optimizer.epsilon;
  verdict.adam.weight_decay = optimizer.weight_decay;
  verdict.adam.decoupled_decay = optimizer.decoupled_decay;
  verdict.adam.bias_correction = optimizer.bias_correction;
  verdict.adam.step = applied_steps_;
  return verdict;
}

}  // namespace spillway
