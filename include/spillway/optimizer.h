// The optimizers: one fused pass over a tile of parameters, on the CPU, usable on its own. The kinds, what state each
// keeps and the formats that state may have are here too, since plans, checkpoints and devices speak of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "spillway/dtype.h"

namespace spillway {

// The update rules. Adam covers AdamW: they differ in OptimizerParams::decoupled_decay.
enum class OptimizerKind : std::uint8_t { adam, adagrad, lion, sgd, sgd_momentum };
inline constexpr int kOptimizerKinds = 5;

// How a moment is quantised to 8 bits: `square` suits values of either sign, `fourth_power` sums of squares.
enum class MomentLaw : std::uint8_t { square, fourth_power };

struct MomentTraits {
  std::string_view name;  // PyTorch's: "exp_avg"
  MomentLaw law;
};

inline constexpr int kMaxMoments = 2;

// The one table of what an optimizer keeps per parameter, besides its f32 master.
struct OptimizerTraits {
  std::string_view name;            // "adam"
  std::span<const MomentTraits> moments;
};
const OptimizerTraits& traits_of(OptimizerKind kind);

// How moments are stored. bf16: rounded stochastically. block8: one byte each, and one byte of scale for every
// kMomentBlock of them.
enum class MomentFormat : std::uint8_t { f32, bf16, block8 };
inline constexpr int kMomentFormats = 3;
inline constexpr std::int64_t kMomentBlock = 256;

std::string_view name_of(MomentFormat format);  // "fp32", "bf16", "8bit"

// What the state of n consecutive parameters looks like in memory, on disk and on a device: sections one after the
// other, each starting on a page of 4096 bytes: master (n f32), then for every moment its values (n f32, n bf16 or n
// bytes), and behind the values of a block8 moment, from a multiple of 256 bytes on, its scales (one byte a block).
struct StateFormat {
  OptimizerKind kind = OptimizerKind::adam;
  MomentFormat moments = MomentFormat::f32;

  int num_moments() const { return static_cast<int>(traits_of(kind).moments.size()); }
  bool operator==(const StateFormat&) const = default;
};

struct StateLayout {
  StateFormat format;
  std::int64_t n = 0;                                // parameters
  std::array<std::int64_t, kMaxMoments> moments{};   // byte at which each moment's values start
  std::array<std::int64_t, kMaxMoments> scales{};    // and its scales; block8 only
  std::int64_t bytes = 0;                            // all sections; a multiple of 4096
};
StateLayout state_layout(const StateFormat& format, std::int64_t n);

// Bytes of state that an update of n parameters reads, and writes, without padding: for cost models.
std::int64_t state_traffic(const StateFormat& format, std::int64_t n);

// Hyper-parameters of one update. Plain values: no state is hidden anywhere, so two groups of parameters share none.
// Double, because 1 - beta2 formed from a beta2 already rounded to float is off by 1e-5 of its value.
struct OptimizerParams {
  OptimizerKind kind = OptimizerKind::adam;
  double learning_rate = 1e-3;
  double beta1 = 0.9;           // Adam, Lion; 0 <= beta < 1
  double beta2 = 0.999;         // Adam, Lion
  double epsilon = 1e-8;        // Adam, Adagrad
  double weight_decay = 0.0;
  bool decoupled_decay = true;  // Adam only: AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101); false: L2 in the gradient
  bool bias_correction = true;  // Adam only
  double momentum = 0.0;        // SGD with momentum
  double dampening = 0.0;       // SGD with momentum; not applied in step 1
  bool nesterov = false;        // SGD with momentum
  double learning_rate_decay = 0.0;  // Adagrad
  std::int64_t step = 1;        // 1 for the first update; bias correction, dampening, and the seed of stochastic rounding
  float gradient_scale = 1.0f;  // the gradient is multiplied by this first: clip factor / loss scale
  std::uint64_t seed = 0;       // of stochastic rounding
};

// What the gradient of a call came to, before scaling.
struct GradientStatistics {
  double square_sum;  // f64: 16 partial sums, of the elements i = 0, 1, ..., 15 modulo 16 in order, added pairwise:
                      // 8 apart, then 4, 2, 1. The same for every instruction set, but a function of how a tile is cut.
  // An infinity or NaN anywhere makes the sum one, and nothing else can: f32 squares cannot overflow in f64.
  bool is_finite() const { return square_sum - square_sum == 0.0; }
};

// `n` consecutive parameters. Each pointer is aligned for its element at least; the arrays do not overlap. The caller
// owns everything.
struct OptimizerTile {
  float* master = nullptr;                 // (n) f32, updated; nullptr: split, see `master_low`
  std::uint16_t* master_low = nullptr;     // (n) split master: with `weight`, which is read too then, and is bf16, the
                                           // exact f32. `weight` is the master rounded to nearest, ties away from zero,
                                           // and this is the lower half of the master's bits, so that
                                           // bits = (weight << 16) + sign_extend(master_low). A NaN becomes 0x7fc00000.
  std::array<void*, kMaxMoments> moments{};       // (n) each in moment_format, updated; those of the kind
  std::array<std::uint8_t*, kMaxMoments> scales{};  // block8 only: (ceil(n / 256)), updated
  MomentFormat moment_format = MomentFormat::f32;
  const void* gradient = nullptr;          // (n) gradient_dtype
  DType gradient_dtype = DType::f32;
  void* weight = nullptr;                  // (n) weight_dtype: the new master, rounded to nearest even; nullptr: not wanted
  DType weight_dtype = DType::bf16;
  std::int64_t n = 0;
  std::uint64_t position = 0;              // of the first element in the whole model: decides the bits of stochastic
                                           // rounding. block8: a multiple of 256.
  GradientStatistics* statistics = nullptr;  // written if wanted: costs no further read of the gradient
};

// Elements [first, first + n) of a tile, without statistics. block8: `first` is a multiple of 256, and so is n unless the
// part is the last.
OptimizerTile part_of(const OptimizerTile& tile, std::int64_t first, std::int64_t n);

// The tile whose state is laid out at `state`, aligned to 64 bytes; gradient, weight and position are left to the caller.
OptimizerTile tile_at(std::byte* state, const StateLayout& layout);

// One update, with g = gradient_scale * gradient, p the master, lr the learning rate, wd weight_decay:
//   adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1), in the order of PyTorch's single-tensor CPU path (torch
//   1.13). L2, if wd != 0: g = g + wd * p; decoupled: p = p * (1 - lr * wd)
//     exp_avg    = beta1 * exp_avg + (1 - beta1) * g
//     exp_avg_sq = beta2 * exp_avg_sq + ((1 - beta2) * g) * g
//     p = p - ((lr / (1 - beta1^step)) * exp_avg) / (sqrt(exp_avg_sq) / sqrt(1 - beta2^step) + epsilon)
//     Without bias correction the two terms 1 - beta^step are 1. (PyTorch 2 forms exp_avg by lerp, exp_avg +
//     (1 - beta1) * (g - exp_avg), which agrees to rounding but can overflow.)
//   adagrad (Duchi, Hazan and Singer 2011), in PyTorch's order: g = g + wd * p
//     sum = sum + g * g;  p = p - ((lr / (1 + (step - 1) * learning_rate_decay)) * g) / (sqrt(sum) + epsilon)
//   lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2): c = beta1 * exp_avg + (1 - beta1) * g
//     p = p * (1 - lr * wd);  p = p - lr * sign(c), sign(0) = 0, NaN stays;  exp_avg = beta2 * exp_avg + (1 - beta2) * g
//   sgd: g = g + wd * p;  p = p - lr * g
//   sgd_momentum, in PyTorch's order: g = g + wd * p;  momentum_buffer = momentum * momentum_buffer + (1 - dampening) * g,
//     in step 1 without the dampening;  g = nesterov ? g + momentum * momentum_buffer : momentum_buffer;  p = p - lr * g
// The L2 term is left out where wd is 0.
//
// Arithmetic. Scalar sub-expressions (anything without an array in it) are formed in double and rounded to f32 once.
// Every other operation is one IEEE f32 operation, rounded to nearest, subnormals kept, whatever floating-point mode
// the caller is in; none is fused. Same bits for every instruction set, every alignment and every way of cutting a tile
// into calls; only the payload of a NaN is unspecified.
//
// Moments are used in f32 as computed, then rounded to their format. With u = 16 bits of the hash of position, seed and
// step (lib/base/stochastic_rounding.h has the formula), the upper half of a 32-bit word for the first moment and the
// lower for the second:
//   bf16: the f32's bits plus u, upper half kept: the value above or below, with the probability that makes the mean
//     exact. From the largest finite bf16 on, towards zero, so that nothing becomes infinite.
//   block8: value = code * |code| * s (square; codes -127 to 127) or (code * code)^2 * s (fourth_power; 0 to 255), s a
//     power of two per block, the smallest not below 2^-126 under which the block's largest magnitude can be expressed;
//     codes are rounded stochastically between the neighbouring values, to finite ones. A sum of squares that is not zero never
//     becomes zero, and the largest magnitude never so small that a smaller s would do. The scale byte is the exponent
//     byte of s, 0 for a block of zeros, 255 for one that held an infinity or NaN, which all of its values then are.
//
// Thread-safe for disjoint tiles. Takes no memory and starts no thread.
void optimizer_update(const OptimizerTile& tile, const OptimizerParams& params);

// The same on parallel_threads() threads of a pool that lives as long as the process, each taking pieces. Statistics
// are not available here: they depend on the cut.
void optimizer_update_parallel(const OptimizerTile& tile, const OptimizerParams& params);

// The sum alone, in one read.
GradientStatistics gradient_statistics(const void* gradient, DType dtype, std::int64_t n);

// Moments as f32, and back. `values`, `scales`: as in a tile. Encoding rounds to the nearest value of the format (bf16:
// ties to even), and encoding what was decoded gives the same bytes, scales included. block8: from the start of a block
// on; n is a multiple of 256 or all there is.
void decode_moments(MomentFormat format, MomentLaw law, const void* values, const std::uint8_t* scales, std::span<float> out);
void encode_moments(MomentFormat format, MomentLaw law, std::span<const float> in, void* values, std::uint8_t* scales);

// The instruction sets built into this binary and usable on this CPU, best first; "scalar" is last.
std::vector<std::string_view> available_isas();

// The one in use: the best available, or the one named by SPILLWAY_ISA; chosen at the first update and
// kept. Throws ConfigError if that name is unknown or this CPU lacks it, and so does optimizer_update().
std::string_view active_isa();

// The update by one instruction set of available_isas(), whatever the active one is. Throws ConfigError for any other name.
void optimizer_update_with(std::string_view isa, const OptimizerTile& tile, const OptimizerParams& params);

}  // namespace spillway
