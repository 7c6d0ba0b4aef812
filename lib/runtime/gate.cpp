#include "runtime/gate.h"

#include <algorithm>
#include <cmath>

#include "optim/clipping.h"
#include "optim/schedule.h"

namespace spillway {

Gate::Gate(const Config& config) : config_(config), scaler_(config.dtype, config.loss_scale) {}

GateVerdict Gate::decide(double loss_sum, std::int64_t tokens, std::span<const double> square_sums) {
  GateVerdict verdict;
  const OptimizerConfig& optimizer = config_.optimizer;
  const double scaled_norm = global_norm(square_sums);
  const bool overflow = !std::isfinite(scaled_norm);
  verdict.loss = loss_sum / static_cast<double>(tokens);
  verdict.loss_scale = scaler_.scale();
  verdict.gradient_norm = scaled_norm / verdict.loss_scale;
  verdict.learning_rate = learning_rate(config_.scheduler, optimizer.learning_rate, applied_steps_);
  verdict.adam.gradient_scale = overflow ? 0.0f : gradient_scale(scaled_norm, verdict.loss_scale, config_.gradient_clipping);
  verdict.scaling = scaler_.update(overflow);
  verdict.skip = verdict.scaling.skipped;
  if (verdict.skip) {
    ++skipped_steps_;
    const auto bad = std::find_if(square_sums.begin(), square_sums.end(), [](double sum) { return !std::isfinite(sum); });
    if (bad != square_sums.end()) verdict.first_bad_piece = bad - square_sums.begin();
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
