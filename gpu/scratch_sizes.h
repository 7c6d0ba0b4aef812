// Bytes of scratch of the CUDA device's kernels: pure functions of the shape, compiled without CUDA, so that a plan for a
// CUDA device can be made on any machine.
#pragma once

#include <cstdint>

#include "spillway/dtype.h"
#include "spillway/ops.h"

namespace spillway::cuda {

// What cuBLASLt may use beside its operands; part of every scratch that a product of matrices gets.
inline constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{32} << 20;

std::int64_t layernorm_backward_scratch_bytes(DType dtype, std::int64_t rows, std::int64_t channels);
std::int64_t attention_forward_scratch_bytes(DType dtype, const AttentionDims& dims);
std::int64_t attention_backward_scratch_bytes(DType dtype, const AttentionDims& dims);
std::int64_t column_sum_scratch_bytes(std::int64_t rows, std::int64_t n);
std::int64_t linear_forward_scratch_bytes(DType dtype, const MatmulDims& dims);
std::int64_t linear_backward_scratch_bytes(DType dtype, const MatmulDims& dims);
std::int64_t loss_head_scratch_bytes(DType dtype, const LossHeadDims& dims);

// Blocks of rows whose sums LayerNorm's backward pass keeps apart.
std::int64_t layernorm_partials(std::int64_t rows, std::int64_t channels);

// Rows of logits that the loss head has at a time.
std::int64_t loss_head_chunk_rows(const LossHeadDims& dims);

}  // namespace spillway::cuda
