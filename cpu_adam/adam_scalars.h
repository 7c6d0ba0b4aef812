// What the kernels know of the hyper-parameters: one f32 per scalar sub-expression of the update, and the
// entry points that take them. Included by the instruction-set files, so it holds declarations only.
#pragma once

#include <cstdint>

namespace spillway {

struct AdamTile;

namespace cpu_adam {

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

// The contract of InstructionSet::update.
std::int64_t update_scalar(const AdamTile& tile, const AdamScalars& scalars);
std::int64_t update_avx2(const AdamTile& tile, const AdamScalars& scalars);
std::int64_t update_avx512(const AdamTile& tile, const AdamScalars& scalars);

}  // namespace cpu_adam
}  // namespace spillway
