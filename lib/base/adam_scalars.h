// What an Adam update knows of the hyper-parameters: one f32 for each scalar sub-expression. Formed here for every
// device, so that all of them start from the same bits.
#pragma once

#include "spillway/cpu_adam.h"

namespace spillway {

struct AdamScalars {
  float gradient_scale;
  bool decoupled;             // which of the next two applies
  float decay_factor;         // 1 - learning_rate * weight_decay
  float weight_decay;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;            // learning_rate / (1 - beta1^step)
  float sqrt_correction2;     // sqrt(1 - beta2^step)
  float epsilon;
};

// In double, each rounded to f32 once, whatever floating-point mode the caller is in.
AdamScalars adam_scalars(const AdamParams& params);

}  // namespace spillway
