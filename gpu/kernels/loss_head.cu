// Cross-entropy of rows of logits, forward and backward.
//
// A block has a row: one pass for the largest logit and the sum of e^(logit - largest), rescaled whenever the largest
// grows, and one for the gradient. Per logit that reads 4 bytes twice and writes a T. Long rows get large blocks, so that
// those in flight are few: of GPT-2's vocabulary 264 rows on an H100, 53 MB, most of which is still in L2 (50 MB) at the
// second pass. Then 4 + sizeof(T) bytes per logit come from memory, and 0.8 of its bandwidth is to be expected: a fifth of
// the time of the three products around it at 1600 channels.
#include <cfloat>
#include <cmath>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/vectors.h"
#include "intrinsics/warp.h"

namespace spillway::cuda {

namespace {

constexpr int kWidth = 4;
constexpr int kMostThreads = 1024, kSumThreads = 256;

// At least two vectors of logits for a thread, save in rows too short for a warp.
constexpr unsigned threads_for(std::int64_t vocabulary) { return vocabulary < 1024 ? 32 : vocabulary < 8192 ? 256 : kMostThreads; }

// Logits [first, first + kWidth) of a row, -infinity (no part of softmax) behind its end.
__device__ inline void load_logits(const float* row, std::int64_t first, std::int64_t vocabulary, float (&x)[kWidth]) {
  load(row + first, kWidth, x);
  if (first + kWidth > vocabulary) {
    for (int i = 0; i < kWidth; ++i) {
      if (first + i >= vocabulary) x[i] = -INFINITY;
    }
  }
}

// The largest logit of a row and the sum of e^(logit - largest), the same in every thread of the block. Terms are added
// in f32 by fours and beyond that in f64. A NaN makes the sum one.
struct RowSums {
  float largest;
  double sum;
};

__device__ inline RowSums sum_row(const float* row, std::int64_t vocabulary) {
  float largest = -FLT_MAX;
  double sum = 0.0;
  for (std::int64_t first = kWidth * static_cast<std::int64_t>(threadIdx.x); first < vocabulary; first += kWidth * blockDim.x) {
    float x[kWidth];
    load_logits(row, first, vocabulary, x);
    const float highest = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    if (highest > largest) {
      sum *= static_cast<double>(expf(largest - highest));
      largest = highest;
    }
    const float terms = (expf(x[0] - largest) + expf(x[1] - largest)) + (expf(x[2] - largest) + expf(x[3] - largest));
    sum += static_cast<double>(terms);
  }
  const float largest_of_all = gpu::block_max(largest);
  return {largest_of_all, gpu::block_sum(sum * static_cast<double>(expf(largest - largest_of_all)))};
}

template <class T>
__global__ void __launch_bounds__(kMostThreads) cross_entropy_kernel(CrossEntropyChunk op) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = op.targets[row];
  const float* const logits = op.logits + row * op.stride;
  T* const dlogits = op.dlogits == nullptr ? nullptr : static_cast<T*>(op.dlogits) + row * op.stride;
  // The same for all threads of the block.
  const RowSums sums = target < 0 ? RowSums{0.0f, 0.0} : sum_row(logits, op.vocabulary);
  if (threadIdx.x == 0) {
    op.losses[row] = target < 0 ? 0.0 : log(sums.sum) + (static_cast<double>(sums.largest) - static_cast<double>(logits[target]));
  }
  if (dlogits != nullptr) {
    const float scale = target < 0 ? 0.0f : static_cast<float>(static_cast<double>(op.gradient_scale) / sums.sum);
    for (std::int64_t first = kWidth * static_cast<std::int64_t>(threadIdx.x); first < op.vocabulary; first += kWidth * blockDim.x) {
      float gradient[kWidth] = {};
      if (target >= 0) {
        float x[kWidth];
        load_logits(logits, first, op.vocabulary, x);
        for (int i = 0; i < kWidth; ++i) {
          const float probability = expf(x[i] - sums.largest) * scale;
          gradient[i] = first + i == target ? probability - op.gradient_scale : probability;
        }
      }
      store(gradient, dlogits + first, kWidth);
    }
  }
}

// 256 strands of every 256th loss, then the strands in the block's order.
__global__ void __launch_bounds__(kSumThreads) sum_losses_kernel(const double* losses, double* loss_sum, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = threadIdx.x; i < n; i += kSumThreads) sum += losses[i];
  const double total = gpu::block_sum(sum);
  if (threadIdx.x == 0) *loss_sum = total;
}

}  // namespace

template <class T>
void cross_entropy(cudaStream_t stream, const CrossEntropyChunk& op) {
  launch("cross_entropy", cross_entropy_kernel<T>, {dim3(static_cast<unsigned>(op.rows)), dim3(threads_for(op.vocabulary))}, stream, op);
}

void sum_losses(cudaStream_t stream, const double* losses, double* loss_sum, std::int64_t n) {
  launch("sum_losses", sum_losses_kernel, {dim3(1), dim3(kSumThreads)}, stream, losses, loss_sum, n);
}

template void cross_entropy<float>(cudaStream_t, const CrossEntropyChunk&);
template void cross_entropy<__nv_bfloat16>(cudaStream_t, const CrossEntropyChunk&);
template void cross_entropy<__half>(cudaStream_t, const CrossEntropyChunk&);

}  // namespace spillway::cuda
