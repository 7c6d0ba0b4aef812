#include "runtime/gate.h"

#include <algorithm>
#include <cmath>

#include "optim/clipping.h"
#include "optim/schedule.h"

namespace spillway {

namespace {

double counted_tokens(const GateInput& input) { return static_cast<double>(std::max<std::int64_t>(1, input.tokens)); }

}  // namespace

Gate::Gate(const Config& config, std::uint64_t seed) : config_(config), seed_(seed), scaler_(config.dtype, config.loss_scale) {}

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
  verdict.scaling = scaler_.update(overflow);
  verdict.skip = verdict.scaling.skipped;
  if (verdict.skip) {
    ++skipped_steps_;
    const auto bad = std::find_if(input.square_sums.begin(), input.square_sums.end(), [](double sum) { return !std::isfinite(sum); });
    if (bad != input.square_sums.end()) verdict.first_bad_piece = bad - input.square_sums.begin();
    return verdict;
  }
  ++applied_steps_;
  verdict.update = {.kind = optimizer.state.kind,
                    .learning_rate = verdict.learning_rate,
                    .beta1 = optimizer.beta1,
                    .beta2 = optimizer.beta2,
                    .epsilon = optimizer.epsilon,
                    .weight_decay = optimizer.weight_decay,
                    .decoupled_decay = optimizer.decoupled_decay,
                    .bias_correction = optimizer.bias_correction,
                    .momentum = optimizer.momentum,
                    .dampening = optimizer.dampening,
                    .nesterov = optimizer.nesterov,
                    .learning_rate_decay = optimizer.learning_rate_decay,
                    .step = applied_steps_,
                    .gradient_scale = gradient_scale(scaled_norm, factor, config_.gradient_clipping),
                    .seed = seed_};
  return verdict;
}

}  // namespace spillway
