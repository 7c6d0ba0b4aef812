// The gate between backward and update: one look at the global norm decides whether the step is applied,
// how gradients are scaled, and which learning rate is used.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "optim/loss_scaler.h"
#include "spillway/config.h"
#include "spillway/optimizer.h"

namespace spillway {

struct GateVerdict {
  bool skip = true;             // update nothing
  double loss = 0.0;            // mean over all tokens of the step that have a target
  double gradient_norm = 0.0;   // of the unscaled gradient, before clipping; not finite on overflow
  double loss_scale = 1.0;      // used in this step
  double learning_rate = 0.0;   // used in this step, or the one it would have used
  ScaleUpdate scaling;
  std::int64_t first_bad_piece = -1;  // index into GateInput::square_sums of the first that is not finite
  OptimizerParams update{};     // for update_tile, unless skip
};

// What a step came to.
struct GateInput {
  double loss_sum = 0.0;
  std::int64_t tokens = 1;           // that have a target, of all ranks
  std::int64_t planned_tokens = 1;   // by which backward has divided the gradient: every token it can hold
  std::span<const double> square_sums;  // of the gradient's parts, in their fixed order
};

// What the gate remembers between steps.
struct GateState {
  LossScalerState scaler;
  std::int64_t applied_steps = 0;
  std::int64_t skipped_steps = 0;

  bool operator==(const GateState&) const = default;
};

class Gate {
 public:
  // `seed`: of stochastic rounding.
  explicit Gate(const Config& config, std::uint64_t seed = 0);

  GateVerdict decide(const GateInput& input);

  // What the mean gradient of the step was multiplied with: the loss scale, and the tokens that have a target over
  // those by which backward divided.
  double gradient_factor(const GateInput& input) const;

  GateState state() const { return {scaler_.state(), applied_steps_, skipped_steps_}; }
  void restore(const GateState& state);

  double loss_scale() const { return scaler_.scale(); }
  std::int64_t applied_steps() const { return applied_steps_; }
  std::int64_t skipped_steps() const { return skipped_steps_; }

 private:
  const Config& config_;
  std::uint64_t seed_;
  LossScaler scaler_;
  std::int64_t applied_steps_ = 0;
  std::int64_t skipped_steps_ = 0;
};

}  // namespace spillway
