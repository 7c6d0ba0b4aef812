#include "optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

namespace spillway {

namespace {

constexpr double kLargestScale = 0x1p100;

}  // namespace

LossScaler::LossScaler(DType dtype, const LossScaleConfig& config)
    : dynamic_(dtype == DType::f16 && config.dynamic), config_(config) {
  if (dtype != DType::f16) {
    state_.scale = 1.0;
  } else {
    state_.scale = config.dynamic ? std::ldexp(1.0, config.initial_scale_power) : config.static_scale;
  }
  state_.hysteresis_left = config.hysteresis;
}

ScaleUpdate LossScaler::update(bool overflow) {
  ScaleUpdate result{.skipped = overflow};
  if (overflow) {
    result.change = back_off();
    state_.last_overflow = state_.updates;
  } else if (dynamic_) {
    result.change = grow();
  }
  ++state_.updates;
  return result;
}

ScaleChange LossScaler::back_off() {
  if (!dynamic_) return ScaleChange::fixed;
  if (state_.hysteresis_left > 1) {
    --state_.hysteresis_left;
    return ScaleChange::tolerated;
  }
  const double before = state_.scale;
  state_.scale = std::max(before / 2, config_.min_scale);
  // Not "halved" either when an initial scale below min_scale is lifted to it.
  return state_.scale < before ? ScaleChange::halved : ScaleChange::at_minimum;
}

ScaleChange LossScaler::grow() {
  if (config_.consecutive_hysteresis) state_.hysteresis_left = config_.hysteresis;
  const std::int64_t clean_steps = state_.updates - state_.last_overflow - 1;
  if (clean_steps <= 0 || clean_steps % config_.window != 0) return ScaleChange::unchanged;
  state_.hysteresis_left = config_.hysteresis;
  if (state_.scale >= kLargestScale) return ScaleChange::unchanged;
  state_.scale *= 2;
  return ScaleChange::doubled;
}

}  // namespace spillway
