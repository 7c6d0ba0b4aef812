// What surrounds the products of linear maps: the epilogue where cuBLASLt has none, and the gradient of the bias.
#include <algorithm>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/vectors.h"
#include "gpu/scratch_sizes.h"
#include "intrinsics/launch.h"
#include "intrinsics/math.h"
#include "intrinsics/shared_memory.h"

namespace spillway::cuda {

namespace {

constexpr std::int64_t kMaxGridRows = 65535;
constexpr int kWidth = 4;  // columns of a thread, where they allow it

constexpr unsigned blocks_for(std::int64_t items, std::int64_t per_block) { return static_cast<unsigned>(divide_up(items, per_block)); }

constexpr int kEpilogueThreads = 128;

// One thread for W columns, blocks along y for the rows. Per element 4 bytes of sums are read and one or two T moved: bound
// by memory, and so are its neighbours; it only runs where cuBLASLt refused.
template <class T, int W>
__global__ void __launch_bounds__(kEpilogueThreads) linear_epilogue_kernel(LinearEpilogue op) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kEpilogueThreads + threadIdx.x) * W;
  if (column < op.n) {
    float bias[W];
    load(static_cast<const T*>(op.bias) + column, W, bias);
    for (std::int64_t row = blockIdx.y; row < op.rows; row += gridDim.y) {
      const std::int64_t at = row * op.n + column;
      float sums[W], residual[W] = {};
      load(op.product + at, W, sums);
      if (op.residual != nullptr) load(static_cast<const T*>(op.residual) + at, W, residual);
      for (int i = 0; i < W; ++i) sums[i] += bias[i] + residual[i];
      store(sums, static_cast<T*>(op.y) + at, W);
    }
  }
}

constexpr int kPartialThreads = 128;

// partials[p][j] = sum over rows [p * kRowsPerPartial, ...) of x[row][j], in the order of the rows: one thread for W
// columns. Reads 2 or 4 bytes per element once; with 128 rows or more there are blocks enough to fill the bandwidth.
template <class T, int W>
__global__ void __launch_bounds__(kPartialThreads)
    column_partials_kernel(const T* __restrict__ x, float* __restrict__ partials, std::int64_t rows, std::int64_t n) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kPartialThreads + threadIdx.x) * W;
  if (column < n) {
    for (std::int64_t first = blockIdx.y * kRowsPerPartial; first < rows; first += gridDim.y * kRowsPerPartial) {
      const std::int64_t end = first + kRowsPerPartial < rows ? first + kRowsPerPartial : rows;
      float sums[W] = {};
#pragma unroll 8
      for (std::int64_t row = first; row < end; ++row) {
        float values[W];
        load(x + row * n + column, W, values);
        for (int i = 0; i < W; ++i) sums[i] += values[i];
      }
      store(sums, partials + first / kRowsPerPartial * n + column, W);
    }
  }
}

constexpr int kTreeColumns = 32, kTreeStrands = 8;

// sums[j] = sum of partials[.][j]: eight strands of every eighth partial sum, then the strands in order.
__global__ void __launch_bounds__(kTreeColumns* kTreeStrands)
    column_totals_kernel(const float* __restrict__ partials, float* __restrict__ sums, std::int64_t num_partials, std::int64_t n) {
  SPILLWAY_SHARED_ARRAY(float, strands, kTreeColumns * kTreeStrands);
  const int lane = static_cast<int>(threadIdx.x) % kTreeColumns, strand = static_cast<int>(threadIdx.x) / kTreeColumns;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kTreeColumns + lane;
  float sum = 0.0f;
  if (column < n) {
#pragma unroll 4
    for (std::int64_t p = strand; p < num_partials; p += kTreeStrands) sum += partials[p * n + column];
  }
  strands[threadIdx.x] = sum;
  __syncthreads();
  if (strand == 0 && column < n) {
    for (int other = 1; other < kTreeStrands; ++other) sum += strands[other * kTreeColumns + lane];
    sums[column] = sum;
  }
}

}  // namespace

template <class T>
void linear_epilogue(cudaStream_t stream, const LinearEpilogue& op) {
  const bool in_vectors = op.n % kWidth == 0 && is_aligned<kWidth>(op.product) && is_aligned<kWidth>(static_cast<const T*>(op.bias)) &&
                          is_aligned<kWidth>(static_cast<const T*>(op.residual)) && is_aligned<kWidth>(static_cast<const T*>(op.y));
  with_vectors_if<kWidth>(in_vectors, [&](auto width) {
    const LaunchShape shape{dim3(blocks_for(op.n, kEpilogueThreads * width()), static_cast<unsigned>(std::min(op.rows, kMaxGridRows))),
                            dim3(kEpilogueThreads)};
    launch("linear_epilogue", linear_epilogue_kernel<T, width()>, shape, stream, op);
  });
}

template <class T>
void column_sum(cudaStream_t stream, const void* dy, float* dbias, std::int64_t rows, std::int64_t n, void* scratch) {
  const T* const x = static_cast<const T*>(dy);
  float* const partials = static_cast<float*>(scratch);
  const std::int64_t num_partials = divide_up(rows, kRowsPerPartial);
  with_vectors_if<kWidth>(n % kWidth == 0 && is_aligned<kWidth>(x), [&](auto width) {
    const LaunchShape shape{dim3(blocks_for(n, kPartialThreads * width()), static_cast<unsigned>(std::min(num_partials, kMaxGridRows))),
                            dim3(kPartialThreads)};
    launch("column_partials", column_partials_kernel<T, width()>, shape, stream, x, partials, rows, n);
  });
  const LaunchShape shape{dim3(blocks_for(n, kTreeColumns)), dim3(kTreeColumns * kTreeStrands)};
  launch("column_totals", column_totals_kernel, shape, stream, partials, dbias, num_partials, n);
}

template void linear_epilogue<float>(cudaStream_t, const LinearEpilogue&);
template void linear_epilogue<__nv_bfloat16>(cudaStream_t, const LinearEpilogue&);
template void linear_epilogue<__half>(cudaStream_t, const LinearEpilogue&);
template void column_sum<float>(cudaStream_t, const void*, float*, std::int64_t, std::int64_t, void*);
template void column_sum<__nv_bfloat16>(cudaStream_t, const void*, float*, std::int64_t, std::int64_t, void*);
template void column_sum<__half>(cudaStream_t, const void*, float*, std::int64_t, std::int64_t, void*);

}  // namespace spillway::cuda
