// Tied output projection and cross-entropy, forward and backward over chunks of rows: the logits of one
// chunk become their own gradient in place, so the full logits never exist.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/parallel.h"
#include "host/dtype_of.h"
#include "host/gemm.h"
#include "host/kernels.h"
#include "host/math.h"
#include "host/partition.h"
#include "host/row_reduce.h"

namespace spillway::host {

namespace {

// A chunk holds about this many logits (32 MiB), within these numbers of rows: every chunk reads the
// weight twice and its gradient once, so few rows would make the products bound by memory.
constexpr std::int64_t kChunkLogits = std::int64_t{8} << 20;
constexpr std::int64_t kMinChunkRows = 32, kMaxChunkRows = 512;

// Terms summed in f32 before the sum is carried on in f64.
constexpr std::int64_t kSumBlock = 1024;

std::int64_t chunk_rows(const LossHeadDims& dims) {
  const std::int64_t fitting = kChunkLogits / dims.vocabulary / kMinChunkRows * kMinChunkRows;
  return std::min(dims.rows, std::clamp(fitting, kMinChunkRows, kMaxChunkRows));
}

// Where things lie in the scratch.
struct Layout {
  std::int64_t losses;  // (chunk) f64, at offset 0
  std::int64_t logits;  // (chunk, V) f32
  std::int64_t gemm;    // the rest
};

constexpr std::int64_t kLine = 64;  // bytes

Layout layout_of(const LossHeadDims& dims) {
  const std::int64_t rows = chunk_rows(dims);
  const std::int64_t logits = round_up(rows * std::int64_t{sizeof(double)}, kLine);
  return {0, logits, logits + round_up(rows * dims.vocabulary * size_of(DType::f32), kLine)};
}

SPILLWAY_CLONES float largest(const float* x, std::int64_t n) { return row_max(x, n); }

// sum of e^(x - shift)
SPILLWAY_CLONES float exponential_sum(const float* x, std::int64_t n, float shift) {
  return row_sum(n, [=](std::int64_t i) __attribute__((always_inline)) { return fast_exp(x[i] - shift); });
}

// The same, leaving e^(x - shift) in x.
SPILLWAY_CLONES float exponentiate(float* x, std::int64_t n, float shift) {
  return row_sum(n, [=](std::int64_t i) __attribute__((always_inline)) { return x[i] = fast_exp(x[i] - shift); });
}

SPILLWAY_CLONES void scale(float* x, std::int64_t n, float factor) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// The loss of one row; with `gradient`, its logits become gradient_scale * (softmax - one-hot target).
double finish_row(const LossHead& op, std::int64_t row, float* logits, bool gradient) {
  const std::int64_t n = op.dims.vocabulary;
  const std::int32_t target = op.targets[row];
  if (target < 0) {
    if (gradient) std::fill(logits, logits + n, 0.0f);
    return 0.0;
  }
  assert(target < n);
  const float target_logit = logits[target];
  const float shift = largest(logits, n);
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; i += kSumBlock) {
    const std::int64_t count = std::min(kSumBlock, n - i);
    sum += gradient ? exponentiate(logits + i, count, shift) : exponential_sum(logits + i, count, shift);
  }
  if (gradient) {
    scale(logits, n, static_cast<float>(op.gradient_scale / sum));
    logits[target] -= op.gradient_scale;
  }
  return std::log(sum) + (static_cast<double>(shift) - static_cast<double>(target_logit));
}

// One call's pointers, typed.
template <class T>
struct Chunked {
  const LossHead& op;
  const T* x;
  const T* weight;
  double* losses;
  float* logits;
  std::span<std::byte> gemm_scratch;

  void project(std::int64_t begin, std::int64_t rows) const {
    const auto [all_rows, channels, vocabulary] = op.dims;
    gemm(Gemm<T, T, float>{.shape = {rows, vocabulary, channels},
                           .a_transposed = Transposed::no,
                           .b_transposed = Transposed::yes,
                           .a = x + begin * channels,
                           .lda = channels,
                           .b = weight,
                           .ldb = channels,
                           .c = logits,
                           .ldc = vocabulary,
                           .scratch = gemm_scratch});
  }

  void propagate(std::int64_t begin, std::int64_t rows) const {
    const auto [all_rows, channels, vocabulary] = op.dims;
    gemm(Gemm<float, T, T>{.shape = {rows, channels, vocabulary},
                           .a_transposed = Transposed::no,
                           .b_transposed = Transposed::no,
                           .a = logits,
                           .lda = vocabulary,
                           .b = weight,
                           .ldb = channels,
                           .c = static_cast<T*>(op.dx) + begin * channels,
                           .ldc = channels,
                           .scratch = gemm_scratch});
    gemm(Gemm<float, T, float>{.shape = {vocabulary, channels, rows},
                               .a_transposed = Transposed::yes,
                               .b_transposed = Transposed::no,
                               .a = logits,
                               .lda = vocabulary,
                               .b = x + begin * channels,
                               .ldb = channels,
                               .c = op.dweight,
                               .ldc = channels,
                               .add_to_c = begin > 0,
                               .scratch = gemm_scratch});
  }
};

}  // namespace

std::int64_t loss_head_scratch_bytes(DType dtype, const LossHeadDims& dims) {
  const std::int64_t rows = chunk_rows(dims), c = dims.channels, v = dims.vocabulary;
  const std::int64_t project = gemm_scratch_bytes({rows, v, c}, dtype, dtype, GemmResult::plain_f32);
  const std::int64_t dx = gemm_scratch_bytes({rows, c, v}, DType::f32, dtype, GemmResult::rounded);
  const std::int64_t dweight = gemm_scratch_bytes({v, c, rows}, DType::f32, dtype, GemmResult::plain_f32);
  return layout_of(dims).gemm + std::max({project, dx, dweight});
}

template <class T>
void loss_head(const LossHead& op) {
  assert(static_cast<std::int64_t>(op.scratch.size()) >= loss_head_scratch_bytes(dtype_of<T>, op.dims));
  assert((op.dx == nullptr) == (op.dweight == nullptr));
  const Layout at = layout_of(op.dims);
  const Chunked<T> chunked{op,
                           static_cast<const T*>(op.x),
                           static_cast<const T*>(op.weight),
                           reinterpret_cast<double*>(op.scratch.data() + at.losses),
                           reinterpret_cast<float*>(op.scratch.data() + at.logits),
                           op.scratch.subspan(static_cast<std::size_t>(at.gemm))};
  const bool gradient = op.dx != nullptr;
  const std::int64_t step = chunk_rows(op.dims);
  double total = 0.0;
  for (std::int64_t begin = 0; begin < op.dims.rows; begin += step) {
    const std::int64_t rows = std::min(step, op.dims.rows - begin);
    chunked.project(begin, rows);
    parallel_for(rows, [&](std::int64_t row) {
      chunked.losses[row] =
          finish_row(op, begin + row, chunked.logits + row * op.dims.vocabulary, gradient);
    });
    if (gradient) chunked.propagate(begin, rows);
    for (std::int64_t row = 0; row < rows; ++row) total += chunked.losses[row];
  }
  *op.loss_sum = total;
}

template void loss_head<float>(const LossHead&);
template void loss_head<bf16>(const LossHead&);
template void loss_head<f16>(const LossHead&);

}  // namespace spillway::host
