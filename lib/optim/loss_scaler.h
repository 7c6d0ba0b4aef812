// Loss scaling: the factor on the loss that keeps small fp16 gradients above zero, found by DeepSpeed's
// dynamic state machine. Pure: no tensors, no I/O; the whole state is a plain struct that a checkpoint stores.
#pragma once

#include <cstdint>

#include "spillway/config.h"
#include "spillway/dtype.h"

namespace spillway {

// Everything the scaler remembers between steps.
struct LossScalerState {
  double scale = 1.0;
  std::int64_t updates = 0;         // optimizer steps seen, applied or skipped
  std::int64_t last_overflow = -1;  // the update (counted from 0) of the latest overflow; -1: none
  int hysteresis_left = 1;          // at 1 the next overflow halves the scale; above 1 it only counts down

  bool operator==(const LossScalerState&) const = default;
};

// What one step did to the scale. The step itself is skipped exactly when the gradients overflowed.
enum class ScaleChange : std::uint8_t {
  unchanged,
  halved,      // overflow: half the scale, but not below min_scale
  tolerated,   // overflow: hysteresis counted down, scale kept
  at_minimum,  // overflow: the scale already is min_scale and stays there
  doubled,     // `window` clean steps in a row
  fixed,       // overflow under a static scale, or under bf16/f32, where no scale could have avoided it
};

// Skip or apply, and how the scale moved.
struct ScaleUpdate {
  bool skipped = false;
  ScaleChange change = ScaleChange::unchanged;

  bool operator==(const ScaleUpdate&) const = default;
};

// The state machine of deepspeed/runtime/fp16/loss_scaler.py (DynamicLossScaler.update_scale), restated:
//   overflow: hysteresis_left == 1 ? scale = max(scale / 2, min) : --hysteresis_left; remember the step
//   clean:    with s = steps since the last overflow (or the start), not counting this one:
//             s > 0 and s a multiple of window: scale *= 2 and hysteresis is refilled
//             (consecutive_hysteresis refills it on every clean step instead)
// One difference: where DeepSpeed ends the run (overflow at min_scale with no hysteresis left), this keeps
// training at min_scale and reports ScaleChange::at_minimum, so that the caller decides how long to bear it.
// Scales stop doubling at 2^100: a model whose gradients are all zero must not push 1/scale to zero.
// bf16 and f32 train with scale 1; an overflow still skips the step. Not thread-safe.
class LossScaler {
 public:
  LossScaler(DType dtype, const LossScaleConfig& config);

  // The factor for the loss of the coming step; its gradients are to be divided by it.
  double scale() const { return state_.scale; }

  // To be called once per optimizer step, after its gradients are known.
  ScaleUpdate update(bool overflow);

  const LossScalerState& state() const { return state_; }
  void restore(const LossScalerState& state) { state_ = state; }

 private:
  ScaleChange back_off();
  ScaleChange grow();

  bool dynamic_;
  LossScaleConfig config_;
  LossScalerState state_;
};

}  // namespace spillway
