// The kernels of the CUDA device: one launcher per operation of spillway/ops.h that is not a product of matrices, for
// storage type T (float, __nv_bfloat16, __half; instantiated in each kernel's .cu). Arguments, aliasing and scratch as
// in ops.h; every pointer is device memory or registered host memory. A launcher enqueues on `stream` and returns;
// it throws DeviceError if the launch is refused. Results are functions of the arguments alone: no atomics, every sum
// in a fixed order.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "spillway/dtype.h"
#include "spillway/ops.h"
#include "spillway/optimizer.h"

namespace spillway::cuda {

// embedding.cu
template <class T>
void embedding_forward(cudaStream_t stream, const EmbeddingForward& op);
template <class T>
void embedding_backward(cudaStream_t stream, const EmbeddingBackward& op);

// layernorm.cu
template <class T>
void layernorm_forward(cudaStream_t stream, const LayerNormForward& op);
template <class T>
void layernorm_backward(cudaStream_t stream, const LayerNormBackward& op);

// gelu.cu
template <class T>
void gelu_forward(cudaStream_t stream, const GeluForward& op);
template <class T>
void gelu_backward(cudaStream_t stream, const GeluBackward& op);

// attention.cu
template <class T>
void attention_forward(cudaStream_t stream, const AttentionForward& op);
template <class T>
void attention_backward(cudaStream_t stream, const AttentionBackward& op);

// linear.cu: what surrounds the products of linear maps, where cuBLASLt has no epilogue for it.

// y = product + bias (+ residual), in f32 before rounding.
struct LinearEpilogue {
  const float* product;  // (rows, n) f32
  const void* bias;      // (n) T
  const void* residual;  // (rows, n) T or nullptr; may alias y
  void* y;               // (rows, n) T
  std::int64_t rows, n;
};
template <class T>
void linear_epilogue(cudaStream_t stream, const LinearEpilogue& op);

// dbias[j] = sum over rows of dy[row][j], in f32, rows in a fixed tree. `scratch`: column_sum_scratch_bytes().
template <class T>
void column_sum(cudaStream_t stream, const void* dy, float* dbias, std::int64_t rows, std::int64_t n, void* scratch);

// loss_head.cu: cross-entropy of a chunk of rows whose logits are at hand.
struct CrossEntropyChunk {
  const float* logits;          // (rows, vocabulary) f32, rows `stride` elements apart; 16-byte aligned
  const std::int32_t* targets;  // (rows); negative: no loss, no gradient
  float gradient_scale;
  double* losses;               // (rows) f64
  void* dlogits;                // (rows, vocabulary) T: gradient_scale * (softmax - one-hot), or nullptr; placed as logits
  std::int64_t rows, vocabulary;
  std::int64_t stride;          // a multiple of 4; what lies behind a row up to there is nobody else's
};
template <class T>
void cross_entropy(cudaStream_t stream, const CrossEntropyChunk& op);
// *loss_sum = the sum of n losses in order of a fixed tree.
void sum_losses(cudaStream_t stream, const double* losses, double* loss_sum, std::int64_t n);

// gradient.cu. finalize_gradient's square sums are those of lib/host/gradient.cpp, bit by bit.
void accumulate(cudaStream_t stream, float* accumulator, const float* gradient, std::int64_t n);
void finalize_gradient(cudaStream_t stream, const FinalizeGradient& op);

// reduce.cu, bit by bit as lib/host/reduce.cpp
void round(cudaStream_t stream, const float* from, void* to, DType dtype, std::int64_t n);
void sum_pieces(cudaStream_t stream, const SumPieces& op);

// optimizer.cu, bit by bit as optimizer_update()
void optimizer_update(cudaStream_t stream, const OptimizerTile& tile, const OptimizerParams& params);

}  // namespace spillway::cuda
