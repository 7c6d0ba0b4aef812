// What an update knows of the hyper-parameters: one f32 for each scalar sub-expression of spillway/optimizer.h. Formed
// here for every device, so that all of them start from the same bits.
#pragma once

#include <cstdint>

#include "base/stochastic_rounding.h"

namespace spillway {

struct OptimizerParams;

// Those that a kind does not have are zero, and false.
struct OptimizerScalars {
  float gradient_scale;
  bool has_l2;                // the gradient takes weight_decay * master: not decoupled, and not zero
  float weight_decay;
  float decay_factor;         // 1 - learning_rate * weight_decay; 1 where decay is not decoupled
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;            // Adam: learning_rate / (1 - beta1^step); Adagrad: with its decay; others: learning_rate
  float sqrt_correction2;     // sqrt(1 - beta2^step)
  float epsilon;
  float momentum;
  float one_minus_dampening;  // 1 in step 1
  bool nesterov;
  RoundingKeys keys;          // of positions whose upper 32 bits are those of `position`
};

// In double, each rounded to f32 once, whatever floating-point mode the caller is in.
OptimizerScalars optimizer_scalars(const OptimizerParams& params, std::uint64_t position);

}  // namespace spillway
