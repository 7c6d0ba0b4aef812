// The kernels a model is written against: forward and backward of every operation, gradient
// bookkeeping, and the optimizer update for state that lives on the device.
//
// T is the storage dtype of the Ops object (weights, activations and their gradients); all arithmetic
// and all accumulation is f32. Shapes are row-major. Every call is asynchronous on the stream; all
// memory is the caller's and stays untouched until the work has finished. Nothing allocates.
// `scratch` is caller memory of at least the bytes given by the matching *_scratch_bytes; its content
// is undefined before and after. Results never depend on the number of threads: work is cut into
// pieces whose number and order of reduction are functions of the shape alone.
// Outputs are overwritten unless the comment says "added to".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "spillway/dtype.h"
#include "spillway/optimizer.h"

namespace spillway {

class Stream;

// B sequences of T tokens, C channels, V vocabulary entries.
struct EmbeddingForward {
  const std::int32_t* tokens;  // (B*T)
  const void* token_table;     // (V, C) T
  const void* position_table;  // (>= T, C) T
  void* out;                   // (B*T, C) T: token_table[token] + position_table[t]
  std::int64_t batch, time, channels;
};

struct EmbeddingBackward {
  const std::int32_t* tokens;  // (B*T)
  const void* dout;            // (B*T, C) T
  float* dtoken_table;         // (V, C) f32, added to
  float* dposition_table;      // (positions, C) f32, overwritten; rows >= T become 0
  std::int64_t batch, time, channels, vocabulary, positions;
};

// y = (x - mean) * rstd * weight + bias, statistics per row over `channels`, variance biased.
struct LayerNormForward {
  const void* x;       // (rows, channels) T
  const void* weight;  // (channels) T
  const void* bias;    // (channels) T
  void* y;             // (rows, channels) T
  float* mean;         // (rows) f32
  float* rstd;         // (rows) f32, 1 / sqrt(variance + epsilon)
  std::int64_t rows, channels;
  float epsilon;
};

struct LayerNormBackward {
  const void* dy;         // (rows, channels) T
  const void* x;          // (rows, channels) T
  const void* weight;     // (channels) T
  const float* mean;      // (rows) f32
  const float* rstd;      // (rows) f32
  const void* dresidual;  // (rows, channels) T added into dx in f32 before rounding, or nullptr
  void* dx;               // (rows, channels) T; may alias dy or dresidual
  float* dweight;         // (channels) f32
  float* dbias;           // (channels) f32
  std::int64_t rows, channels;
  std::span<std::byte> scratch;
};

struct MatmulDims {
  std::int64_t m;  // rows of x and y
  std::int64_t n;  // outputs
  std::int64_t k;  // inputs
};

// y = x * transpose(weight) + bias (+ residual, added in f32 before rounding); gelu = GELU(y)
struct LinearForward {
  const void* x;         // (m, k) T
  const void* weight;    // (n, k) T
  const void* bias;      // (n) T or nullptr
  const void* residual;  // (m, n) T or nullptr; may alias y
  void* y;               // (m, n) T
  MatmulDims dims;
  std::span<std::byte> scratch;
  void* gelu = nullptr;  // (m, n) T or nullptr: y through GELU, before or after y is rounded; not together with residual
};

struct LinearBackward {
  const void* dy;      // (m, n) T
  const void* x;       // (m, k) T
  const void* weight;  // (n, k) T
  void* dx;            // (m, k) T, or nullptr if not wanted
  float* dweight;      // (n, k) f32
  float* dbias;        // (n) f32, or nullptr
  MatmulDims dims;
  std::span<std::byte> scratch;
  const void* gelu_input = nullptr;  // (m, k) T or nullptr: what GELU made x of; dx is then the gradient of that
};

// GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2), as GPT-2 uses it.
struct GeluForward {
  const void* x;  // (n) T
  void* y;        // (n) T
  std::int64_t n;
};

struct GeluBackward {
  const void* dy;  // (n) T
  const void* x;   // (n) T
  void* dx;        // (n) T; may alias dy
  std::int64_t n;
};

struct AttentionDims {
  std::int64_t batch, time, heads, head_size;  // channels = heads * head_size
};

// Causal softmax(Q K^T / sqrt(head_size)) V per head. Never stores (T, T) for more than one tile of
// rows of one head.
struct AttentionForward {
  const void* qkv;        // (B, T, 3, heads, head_size) T
  void* y;                // (B, T, heads, head_size) T
  float* log_sum_exp;     // (B, heads, T) f32, of the scaled scores; backward needs it
  AttentionDims dims;
  std::span<std::byte> scratch;
};

struct AttentionBackward {
  const void* dy;            // (B, T, heads, head_size) T
  const void* qkv;           // as forward
  const void* y;             // as forward's result
  const float* log_sum_exp;  // as forward's result
  void* dqkv;                // (B, T, 3, heads, head_size) T
  AttentionDims dims;
  std::span<std::byte> scratch;
};

struct LossHeadDims {
  std::int64_t rows, channels, vocabulary;
};

// Tied output projection and cross-entropy, in chunks of rows so that the full logits never exist:
// logits = x * transpose(weight); loss = -log softmax(logits)[target].
// With dx and dweight given, forward and backward in the same pass over each chunk.
struct LossHead {
  const void* x;                // (rows, channels) T
  const void* weight;           // (vocabulary, channels) T
  const std::int32_t* targets;  // (rows); a negative target has no loss and no gradient
  float gradient_scale;         // d(total)/d(loss of one row): loss_scale / (rows counted * accumulation)
  double* loss_sum;             // (1) f64: sum of the rows' losses
  void* dx;                     // (rows, channels) T, or nullptr for loss only
  float* dweight;               // (vocabulary, channels) f32, or nullptr with dx
  LossHeadDims dims;
  std::span<std::byte> scratch;
};

// Square sums are taken over pieces of this many elements, each in f64 in a fixed order, so that the
// global norm is the same wherever a gradient lives.
inline constexpr std::int64_t kNormPiece = 4096;

constexpr std::int64_t norm_pieces(std::int64_t n) { return (n + kNormPiece - 1) / kNormPiece; }

// Rounds an accumulated f32 gradient to the wire dtype and takes, in the same pass, the square sum of
// what it wrote. A non-finite value makes its piece's sum non-finite.
struct FinalizeGradient {
  const float* accumulated;  // (n) f32
  void* out;                 // (n) out_dtype; may alias `accumulated` if out_dtype is f32
  double* square_sums;       // (norm_pieces(n)) f64
  DType wire;                // rounding applied to every value
  DType out_dtype;           // wire, or f32: storage of the rounded values
  std::int64_t n;
};

// Adds up what the ranks of a world have of the same elements: out[i] = pieces[0][i] + pieces[1][i] + ..., in f32 and
// in this order, or out[i] + that sum.
struct SumPieces {
  const void* pieces;  // (num_pieces, n) dtype
  DType dtype;
  std::int64_t num_pieces;
  std::int64_t n;
  float* out;          // (n) f32
  bool add_to_out;
};

// Bytes of scratch, pure functions of the shape: the planner calls them without a device.
struct ScratchSizes {
  std::int64_t (*layernorm_backward)(DType, std::int64_t rows, std::int64_t channels);
  std::int64_t (*linear_forward)(DType, const MatmulDims&);
  std::int64_t (*linear_backward)(DType, const MatmulDims&);
  std::int64_t (*attention_forward)(DType, const AttentionDims&);
  std::int64_t (*attention_backward)(DType, const AttentionDims&);
  std::int64_t (*loss_head)(DType, const LossHeadDims&);
};

const ScratchSizes& host_scratch_sizes();
// Of the CUDA device; there whether or not this build or machine has one, so that a plan for one can be made anywhere.
const ScratchSizes& cuda_scratch_sizes();

class Ops {
 public:
  virtual ~Ops() = default;

  virtual DType dtype() const = 0;
  virtual const ScratchSizes& scratch_sizes() const = 0;

  virtual void embedding_forward(Stream&, const EmbeddingForward&) = 0;
  virtual void embedding_backward(Stream&, const EmbeddingBackward&) = 0;
  virtual void layernorm_forward(Stream&, const LayerNormForward&) = 0;
  virtual void layernorm_backward(Stream&, const LayerNormBackward&) = 0;
  virtual void linear_forward(Stream&, const LinearForward&) = 0;
  virtual void linear_backward(Stream&, const LinearBackward&) = 0;
  virtual void gelu_forward(Stream&, const GeluForward&) = 0;
  virtual void gelu_backward(Stream&, const GeluBackward&) = 0;
  virtual void attention_forward(Stream&, const AttentionForward&) = 0;
  virtual void attention_backward(Stream&, const AttentionBackward&) = 0;
  virtual void loss_head(Stream&, const LossHead&) = 0;

  // accumulator[i] += gradient[i], f32, n elements.
  virtual void accumulate(Stream&, float* accumulator, const float* gradient, std::int64_t n) = 0;
  virtual void finalize_gradient(Stream&, const FinalizeGradient&) = 0;

  // to[i] = from[i] rounded to `dtype`, n elements of f32.
  virtual void round(Stream&, const float* from, void* to, DType dtype, std::int64_t n) = 0;
  virtual void sum_pieces(Stream&, const SumPieces&) = 0;

  // optimizer_update() (optimizer.h) for a tile whose state, gradient and weights are on the device, without a split
  // master or statistics. Same bits as the CPU's.
  virtual void optimizer_update(Stream&, const OptimizerTile&, const OptimizerParams&) = 0;
};

// The same two passes for gradients that live in host memory; synchronous, `threads`-parallel inside.
void accumulate_on_host(float* accumulator, const float* gradient, std::int64_t n);
void finalize_gradient_on_host(const FinalizeGradient&);

}  // namespace spillway
