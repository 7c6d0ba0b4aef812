#include "gpu/scratch_sizes.h"

#include <algorithm>

namespace spillway {

namespace cuda {

namespace {

constexpr std::int64_t kLine = 256;  // bytes; cudaMalloc's alignment, which vector loads rely on

// Partial sums of a column, one for each so many rows.
constexpr std::int64_t kRowsPerPartial = 64;

// LayerNorm's blocks of rows: enough for 32 warps of 256 channels on each of 132 multiprocessors, which an H200 has, and
// enough rows for a block's partial sums to be few beside what it reads.
constexpr std::int64_t kLayerNormPartialElements = std::int64_t{132} * 32 * 256;
constexpr std::int64_t kLayerNormMinRows = 8;

// A chunk of the loss head holds about this many logits (256 MiB of f32), within these numbers of rows.
constexpr std::int64_t kChunkLogits = std::int64_t{64} << 20;
constexpr std::int64_t kMinChunkRows = 128, kMaxChunkRows = 4096;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t lines(std::int64_t bytes) { return divide_up(bytes, kLine) * kLine; }
constexpr std::int64_t partials(std::int64_t rows) { return divide_up(rows, kRowsPerPartial); }

}  // namespace

std::int64_t layernorm_partials(std::int64_t rows, std::int64_t channels) {
  const std::int64_t most = std::min(kLayerNormPartialElements / channels, divide_up(rows, kLayerNormMinRows));
  const std::int64_t rows_each = std::max(std::int64_t{1}, divide_up(rows, std::max(std::int64_t{1}, most)));
  return std::max(std::int64_t{1}, divide_up(rows, rows_each));
}

std::int64_t layernorm_backward_scratch_bytes(DType, std::int64_t rows, std::int64_t channels) {
  return lines(2 * layernorm_partials(rows, channels) * channels * size_of(DType::f32));
}

std::int64_t attention_forward_scratch_bytes(DType, const AttentionDims&) { return 0; }

std::int64_t attention_backward_scratch_bytes(DType, const AttentionDims& dims) {
  return lines(dims.batch * dims.heads * dims.time * size_of(DType::f32));
}

std::int64_t column_sum_scratch_bytes(std::int64_t rows, std::int64_t n) { return lines(partials(rows) * n * size_of(DType::f32)); }

std::int64_t linear_forward_scratch_bytes(DType, const MatmulDims& dims) {
  return kGemmWorkspaceBytes + lines(dims.m * dims.n * size_of(DType::f32));
}

std::int64_t linear_backward_scratch_bytes(DType, const MatmulDims& dims) {
  return kGemmWorkspaceBytes + std::max(column_sum_scratch_bytes(dims.m, dims.n), lines(dims.m * dims.k * size_of(DType::f32)));
}

std::int64_t loss_head_chunk_rows(const LossHeadDims& dims) {
  const std::int64_t fitting = kChunkLogits / dims.vocabulary / kMinChunkRows * kMinChunkRows;
  return std::min(dims.rows, std::clamp(fitting, kMinChunkRows, kMaxChunkRows));
}

std::int64_t loss_head_scratch_bytes(DType dtype, const LossHeadDims& dims) {
  const std::int64_t rows = loss_head_chunk_rows(dims), logits = rows * dims.vocabulary;
  return kGemmWorkspaceBytes + lines(dims.rows * std::int64_t{sizeof(double)}) + lines(logits * size_of(DType::f32)) +
         lines(logits * size_of(dtype));
}

}  // namespace cuda

const ScratchSizes& cuda_scratch_sizes() {
  static constexpr ScratchSizes sizes{
      .layernorm_backward = cuda::layernorm_backward_scratch_bytes,
      .linear_forward = cuda::linear_forward_scratch_bytes,
      .linear_backward = cuda::linear_backward_scratch_bytes,
      .attention_forward = cuda::attention_forward_scratch_bytes,
      .attention_backward = cuda::attention_backward_scratch_bytes,
      .loss_head = cuda::loss_head_scratch_bytes,
  };
  return sizes;
}

}  // namespace spillway
