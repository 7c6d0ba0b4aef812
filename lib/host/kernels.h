// The kernels of the host device: one plain synchronous function per operation of spillway/ops.h, for
// storage type T (float, bf16, f16; instantiated in each kernel's .cpp). Parallel inside by
// parallel_for over pieces that depend on the shape alone. Arguments, aliasing and scratch as in ops.h.
#pragma once

#include <cstdint>

#include "spillway/dtype.h"
#include "spillway/ops.h"

namespace spillway::host {

template <class T>
void embedding_forward(const EmbeddingForward& op);
template <class T>
void embedding_backward(const EmbeddingBackward& op);

template <class T>
void layernorm_forward(const LayerNormForward& op);
template <class T>
void layernorm_backward(const LayerNormBackward& op);
std::int64_t layernorm_backward_scratch_bytes(DType dtype, std::int64_t rows, std::int64_t channels);

template <class T>
void linear_forward(const LinearForward& op);
template <class T>
void linear_backward(const LinearBackward& op);
std::int64_t linear_forward_scratch_bytes(DType dtype, const MatmulDims& dims);
std::int64_t linear_backward_scratch_bytes(DType dtype, const MatmulDims& dims);

template <class T>
void gelu_forward(const GeluForward& op);
template <class T>
void gelu_backward(const GeluBackward& op);

template <class T>
void attention_forward(const AttentionForward& op);
template <class T>
void attention_backward(const AttentionBackward& op);
std::int64_t attention_forward_scratch_bytes(DType dtype, const AttentionDims& dims);
std::int64_t attention_backward_scratch_bytes(DType dtype, const AttentionDims& dims);

template <class T>
void loss_head(const LossHead& op);
std::int64_t loss_head_scratch_bytes(DType dtype, const LossHeadDims& dims);

void round(const float* from, void* to, DType dtype, std::int64_t n);
void sum_pieces(const SumPieces& op);

// accumulate_on_host() and finalize_gradient_on_host() of spillway/ops.h and optimizer_update_parallel() are the others.

}  // namespace spillway::host
