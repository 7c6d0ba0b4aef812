// Tied output projection and cross-entropy over chunks of rows, so that the full logits never exist.
#include <algorithm>

#include "gpu/gemm.h"
#include "gpu/kernels/kernels.h"
#include "gpu/matrix_ops.h"
#include "gpu/scratch_sizes.h"
#include "gpu/storage_type.h"

namespace spillway::cuda {

namespace {

// One call's pointers, typed.
template <class T>
struct Chunked {
  Chunked(Gemm& gemm_of_ops, cudaStream_t on_stream, const LossHead& arguments)
      : gemm(gemm_of_ops), stream(on_stream), op(arguments), stride(loss_head_row_stride(op.dims)) {
    const LossHeadScratch at = loss_head_scratch(dtype_of<T>, op.dims);
    losses = reinterpret_cast<double*>(op.scratch.data() + at.losses);
    logits = reinterpret_cast<float*>(op.scratch.data() + at.logits);
    dlogits = op.dx ? reinterpret_cast<T*>(op.scratch.data() + at.dlogits) : nullptr;
    workspace = op.scratch.first(static_cast<std::size_t>(kGemmWorkspaceBytes));
  }

  const T* x(std::int64_t row) const { return static_cast<const T*>(op.x) + row * op.dims.channels; }

  // logits = x * transpose(weight), in f32
  void project(std::int64_t first, std::int64_t rows) const {
    gemm.multiply(stream, {.m = rows,
                           .n = op.dims.vocabulary,
                           .k = op.dims.channels,
                           .operands = dtype_of<T>,
                           .stored = DType::f32,
                           .a = {x(first), op.dims.channels},
                           .b = {op.weight, op.dims.channels, true},
                           .result = logits,
                           .ld = stride,
                           .workspace = workspace});
  }

  void score(std::int64_t first, std::int64_t rows) const {
    cross_entropy<T>(stream, {.logits = logits,
                              .targets = op.targets + first,
                              .gradient_scale = op.gradient_scale,
                              .losses = losses + first,
                              .dlogits = dlogits,
                              .rows = rows,
                              .vocabulary = op.dims.vocabulary,
                              .stride = stride});
  }

  // dx = dlogits * weight; dweight (+)= transpose(dlogits) * x
  void propagate(std::int64_t first, std::int64_t rows) const {
    const auto [all_rows, channels, vocabulary] = op.dims;
    gemm.multiply(stream, {.m = rows,
                           .n = channels,
                           .k = vocabulary,
                           .operands = dtype_of<T>,
                           .stored = dtype_of<T>,
                           .a = {dlogits, stride},
                           .b = {op.weight, channels},
                           .result = static_cast<T*>(op.dx) + first * channels,
                           .ld = channels,
                           .workspace = workspace});
    gemm.multiply(stream, {.m = vocabulary,
                           .n = channels,
                           .k = rows,
                           .operands = dtype_of<T>,
                           .stored = DType::f32,
                           .a = {dlogits, stride, true},
                           .b = {x(first), channels},
                           .result = op.dweight,
                           .ld = channels,
                           .added = first > 0 ? op.dweight : nullptr,
                           .workspace = workspace});
  }

  Gemm& gemm;
  cudaStream_t stream;
  const LossHead& op;
  std::int64_t stride;  // between rows of logits and of their gradients
  double* losses;       // (rows)
  float* logits;        // (chunk, V)
  T* dlogits;           // (chunk, V), or nullptr
  std::span<std::byte> workspace;
};

}  // namespace

template <class T>
void loss_head(Gemm& gemm, cudaStream_t stream, const LossHead& op) {
  const Chunked<T> chunked(gemm, stream, op);
  const std::int64_t step = loss_head_chunk_rows(op.dims);
  for (std::int64_t first = 0; first < op.dims.rows; first += step) {
    const std::int64_t rows = std::min(step, op.dims.rows - first);
    chunked.project(first, rows);
    chunked.score(first, rows);
    if (op.dx) chunked.propagate(first, rows);
  }
  sum_losses(stream, chunked.losses, op.loss_sum, op.dims.rows);
}

template void loss_head<float>(Gemm&, cudaStream_t, const LossHead&);
template void loss_head<__nv_bfloat16>(Gemm&, cudaStream_t, const LossHead&);
template void loss_head<__half>(Gemm&, cudaStream_t, const LossHead&);

}  // namespace spillway::cuda
