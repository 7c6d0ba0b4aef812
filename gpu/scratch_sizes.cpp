#include "gpu/scratch_sizes.h"

#include <algorithm>
#include <string>

#include "spillway/error.h"

namespace spillway {

namespace cuda {

namespace {

constexpr std::int64_t kLine = 256;  // bytes; cudaMalloc's alignment, which vector loads rely on

// The f32 sums of a linear map whose epilogue is a kernel of its own take at most this much, or one row.
constexpr std::int64_t kChunkSums = std::int64_t{16} << 20;  // elements, 64 MiB

// Elements between rows of logits are a multiple of this: 128 bytes of a 16-bit dtype.
constexpr std::int64_t kRowMultiple = 64;

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

void check_head_size(const AttentionDims& dims) {
  if (dims.head_size <= kMaxHeadSize) return;
  throw DeviceError("[cuda] attention on " + std::to_string(dims.heads) + " heads of " + std::to_string(dims.head_size) +
                    " channels: a head may have at most " + std::to_string(kMaxHeadSize) +
                    "; give the model more heads, or train it on the host device (--device host)");
}

}  // namespace

std::int64_t layernorm_partials(std::int64_t rows, std::int64_t channels) {
  const std::int64_t most = std::min(kLayerNormPartialElements / channels, divide_up(rows, kLayerNormMinRows));
  const std::int64_t rows_each = std::max(std::int64_t{1}, divide_up(rows, std::max(std::int64_t{1}, most)));
  return std::max(std::int64_t{1}, divide_up(rows, rows_each));
}

std::int64_t layernorm_backward_scratch_bytes(DType, std::int64_t rows, std::int64_t channels) {
  return lines(2 * layernorm_partials(rows, channels) * channels * size_of(DType::f32));
}

std::int64_t attention_forward_scratch_bytes(DType, const AttentionDims& dims) {
  check_head_size(dims);
  return 0;
}

// The row sums of dy * y.
std::int64_t attention_backward_scratch_bytes(DType, const AttentionDims& dims) {
  check_head_size(dims);
  return lines(dims.batch * dims.heads * dims.time * size_of(DType::f32));
}

std::int64_t column_sum_scratch_bytes(std::int64_t rows, std::int64_t n) { return lines(partials(rows) * n * size_of(DType::f32)); }

std::int64_t linear_chunk_rows(const MatmulDims& dims) { return std::clamp<std::int64_t>(kChunkSums / dims.n, 1, dims.m); }

std::int64_t linear_forward_scratch_bytes(DType, const MatmulDims& dims) {
  return kGemmWorkspaceBytes + lines(linear_chunk_rows(dims) * dims.n * size_of(DType::f32));
}

std::int64_t linear_backward_scratch_bytes(DType, const MatmulDims& dims) {
  return kGemmWorkspaceBytes + column_sum_scratch_bytes(dims.m, dims.n);
}

std::int64_t loss_head_chunk_rows(const LossHeadDims& dims) {
  const std::int64_t fitting = kChunkLogits / dims.vocabulary / kMinChunkRows * kMinChunkRows;
  return std::min(dims.rows, std::clamp(fitting, kMinChunkRows, kMaxChunkRows));
}

std::int64_t loss_head_row_stride(const LossHeadDims& dims) {
  return (dims.vocabulary + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

LossHeadScratch loss_head_scratch(DType dtype, const LossHeadDims& dims) {
  const std::int64_t logits = loss_head_chunk_rows(dims) * loss_head_row_stride(dims);
  LossHeadScratch at;
  at.losses = kGemmWorkspaceBytes;
  at.logits = at.losses + lines(dims.rows * std::int64_t{sizeof(double)});
  at.dlogits = at.logits + lines(logits * size_of(DType::f32));
  at.bytes = at.dlogits + lines(logits * size_of(dtype));
  return at;
}

std::int64_t loss_head_scratch_bytes(DType dtype, const LossHeadDims& dims) { return loss_head_scratch(dtype, dims).bytes; }

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
