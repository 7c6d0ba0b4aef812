// Bytes of scratch of the CUDA device's kernels: pure functions of the shape, compiled without CUDA, so that a plan for a
// CUDA device can be made on any machine.
#pragma once

#include <cstdint>

#include "spillway/dtype.h"
#include "spillway/ops.h"

namespace spillway::cuda {

// What cuBLASLt may use beside its operands; part of every scratch that a product of matrices gets.
inline constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{32} << 20;

// Channels of a head that the attention kernels have shared memory and registers for.
inline constexpr std::int64_t kMaxHeadSize = 256;

// Sums over the rows of a column are taken over this many rows at a time, then over these partial sums.
inline constexpr std::int64_t kRowsPerPartial = 64;

std::int64_t layernorm_backward_scratch_bytes(DType dtype, std::int64_t rows, std::int64_t channels);
// Both throw DeviceError for heads larger than kMaxHeadSize: so a plan for them is refused, and no kernel ever sees one.
std::int64_t attention_forward_scratch_bytes(DType dtype, const AttentionDims& dims);
std::int64_t attention_backward_scratch_bytes(DType dtype, const AttentionDims& dims);
std::int64_t column_sum_scratch_bytes(std::int64_t rows, std::int64_t n);
std::int64_t linear_forward_scratch_bytes(DType dtype, const MatmulDims& dims);
std::int64_t linear_backward_scratch_bytes(DType dtype, const MatmulDims& dims);
std::int64_t loss_head_scratch_bytes(DType dtype, const LossHeadDims& dims);

// Blocks of rows whose sums LayerNorm's backward pass keeps apart.
std::int64_t layernorm_partials(std::int64_t rows, std::int64_t channels);

// Rows whose f32 sums a linear map keeps at a time where cuBLASLt has no epilogue for it.
std::int64_t linear_chunk_rows(const MatmulDims& dims);

// Rows of logits that the loss head has at a time, and the elements from one row of them to the next: a vocabulary is often
// odd, and products want aligned rows.
std::int64_t loss_head_chunk_rows(const LossHeadDims& dims);
std::int64_t loss_head_row_stride(const LossHeadDims& dims);

// Where things lie in the loss head's scratch, in bytes; the workspace of the products is at its start.
struct LossHeadScratch {
  std::int64_t losses;   // (rows) f64
  std::int64_t logits;   // (chunk rows, row stride) f32
  std::int64_t dlogits;  // (chunk rows, row stride) of the storage dtype
  std::int64_t bytes;
};
LossHeadScratch loss_head_scratch(DType dtype, const LossHeadDims& dims);

}  // namespace spillway::cuda
