// The CPU optimizer, usable on its own: one fused pass over a tile of parameters.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "spillway/dtype.h"

namespace spillway {

// Hyper-parameters of one update. Plain values: no state is hidden anywhere. Double, because 1 - beta2
// formed from a beta2 already rounded to float is off by 1e-5 of its value.
struct AdamParams {
  double learning_rate;
  double beta1;            // 0 <= beta < 1
  double beta2;
  double epsilon;
  double weight_decay;
  bool decoupled_decay;    // true: AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101); false: L2 in the gradient
  bool bias_correction;
  std::int64_t step;       // 1 for the first update
  float gradient_scale;    // the gradient is multiplied by this first: clip factor / loss scale
};

// `n` consecutive parameters. Each pointer is 4-byte aligned at least (2-byte for 16-bit arrays); the
// arrays do not overlap. The caller owns everything.
struct AdamTile {
  float* master;         // (n) f32, updated
  float* exp_avg;        // (n) f32, first moment, updated
  float* exp_avg_sq;     // (n) f32, second moment, updated
  const void* gradient;  // (n) gradient_dtype
  DType gradient_dtype;
  void* weight;          // (n) weight_dtype: the new master, rounded to nearest even; nullptr: not wanted
  DType weight_dtype;
  std::int64_t n;
};

// One Adam or AdamW update (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1) in the order of operations
// of PyTorch's single-tensor CPU path (torch.optim.Adam and AdamW as of 1.13):
//   g = gradient_scale * gradient;  L2, if weight_decay != 0: g = g + weight_decay * master
//   decoupled: master = master * (1 - learning_rate * weight_decay)
//   exp_avg    = beta1 * exp_avg + (1 - beta1) * g
//   exp_avg_sq = beta2 * exp_avg_sq + ((1 - beta2) * g) * g
//   denominator = sqrt(exp_avg_sq) / sqrt(1 - beta2^step) + epsilon
//   master = master - ((learning_rate / (1 - beta1^step)) * exp_avg) / denominator
// Without bias correction the two terms 1 - beta^step are 1. Scalar sub-expressions (anything without an
// array in it) are formed in double and rounded to f32 once. Every other operation is one IEEE f32
// operation, rounded to nearest, subnormals kept, whatever floating-point mode the caller is in; none is
// fused (PyTorch's vector code fuses some: the results differ by the rounding of one product). PyTorch 2
// forms exp_avg by lerp, exp_avg + (1 - beta1) * (g - exp_avg), which agrees to rounding but can overflow.
// Same bits for every instruction set, every alignment and every way of cutting a tile into calls; only
// the payload of a NaN is unspecified. Thread-safe for disjoint tiles; the call itself is single-threaded.
void adam_update(const AdamTile& tile, const AdamParams& params);

// The instruction sets built into this binary and usable on this CPU, best first; "scalar" is last.
std::vector<std::string_view> available_isas();

// The one in use: the best available, or the one named by SPILLWAY_ISA; chosen at the first update and
// kept. Throws ConfigError if that name is unknown or this CPU lacks it, and so does adam_update().
std::string_view active_isa();

// The update by one instruction set of available_isas(), whatever the active one is. Throws ConfigError
// for any other name.
void adam_update_with(std::string_view isa, const AdamTile& tile, const AdamParams& params);

}  // namespace spillway
