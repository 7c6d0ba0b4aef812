// Clipping by global norm, and the one factor that takes a raw gradient to what Adam consumes.
#pragma once

#include <span>

namespace spillway {

// L2 norm of everything from the sums of squares of its pieces, added in the order given, so that the
// result depends on nothing else. Infinite or NaN when any piece is.
double global_norm(std::span<const double> square_sums);

// The factor on gradients of global norm `norm` under the limit `max_norm`: 1 / max(1, (norm + 1e-6) / max_norm),
// as in DeepSpeed (runtime/zero/stage3.py, unscale_and_clip_grads). 1 when max_norm is 0. `norm` is of the
// unscaled gradients and finite: a step whose norm is not is skipped before it is clipped.
double clip_factor(double norm, double max_norm);

// The factor on raw gradients, that is of the scaled loss, whose global norm is `scaled_norm`: removes the loss
// scale and clips in one multiplication. Rounded to f32 once.
float gradient_scale(double scaled_norm, double loss_scale, double max_norm);

}  // namespace spillway
