// What surrounds the products of linear maps: the epilogue where cuBLASLt has none, and the gradient of the bias.
#include <algorithm>

#include "gpu/kernels/group.h"
#include "gpu/kernels/kernels.h"
#include "gpu/scratch_sizes.h"
#include "intrinsics/launch.h"
#include "intrinsics/math.h"
#include "intrinsics/shared_memory.h"

namespace spillway::cuda {

namespace {

using gpu::from_float;
using gpu::launch;
using gpu::LaunchShape;
using gpu::to_float;

constexpr std::int64_t kMaxGridRows = 65535;

constexpr unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

constexpr int kEpilogueThreads = 128;

// One thread for W columns, blocks along y for the rows. Per element 4 bytes of sums are read and one or two T moved: bound
// by memory, and so are its neighbours; it only runs where cuBLASLt refused.
template <class T, int W>
__global__ void __launch_bounds__(kEpilogueThreads) linear_epilogue_kernel(LinearEpilogue op) {
  using Values = Group<T, W>;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kEpilogueThreads + threadIdx.x) * W;
  if (column < op.n) {
    const Values bias = Values::load(static_cast<const T*>(op.bias) + column);
    for (std::int64_t row = blockIdx.y; row < op.rows; row += gridDim.y) {
      const std::int64_t at = row * op.n + column;
      const Group<float, W> sums = Group<float, W>::load(op.product + at);
      Values y;
      if (op.residual != nullptr) {
        const Values residual = Values::load(static_cast<const T*>(op.residual) + at);
        for (int i = 0; i < W; ++i) y.of[i] = from_float<T>(sums.of[i] + to_float(bias.of[i]) + to_float(residual.of[i]));
      } else {
        for (int i = 0; i < W; ++i) y.of[i] = from_float<T>(sums.of[i] + to_float(bias.of[i]));
      }
      y.store(static_cast<T*>(op.y) + at);
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
      Group<float, W> sums{};
#pragma unroll 8
      for (std::int64_t row = first; row < end; ++row) {
        const Group<T, W> values = Group<T, W>::load(x + row * n + column);
        for (int i = 0; i < W; ++i) sums.of[i] += to_float(values.of[i]);
      }
      for (int i = 0; i < W; ++i) partials[first / kRowsPerPartial * n + column + i] = sums.of[i];
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

template <class T, int W>
void launch_epilogue(cudaStream_t stream, const LinearEpilogue& op) {
  const LaunchShape shape{dim3(blocks_for(op.n, kEpilogueThreads * W), static_cast<unsigned>(std::min(op.rows, kMaxGridRows))),
                          dim3(kEpilogueThreads)};
  launch("linear_epilogue", linear_epilogue_kernel<T, W>, shape, stream, op);
}

template <class T, int W>
void launch_partials(cudaStream_t stream, const T* dy, float* partials, std::int64_t rows, std::int64_t n) {
  const std::int64_t num_partials = (rows + kRowsPerPartial - 1) / kRowsPerPartial;
  const LaunchShape shape{dim3(blocks_for(n, kPartialThreads * W), static_cast<unsigned>(std::min(num_partials, kMaxGridRows))),
                          dim3(kPartialThreads)};
  launch("column_partials", column_partials_kernel<T, W>, shape, stream, dy, partials, rows, n);
}

}  // namespace

template <class T>
void linear_epilogue(cudaStream_t stream, const LinearEpilogue& op) {
  const bool grouped = op.n % 4 == 0 && is_aligned<float, 4>(op.product) && is_aligned<T, 4>(op.bias) && is_aligned<T, 4>(op.residual) &&
                       is_aligned<T, 4>(op.y);
  grouped ? launch_epilogue<T, 4>(stream, op) : launch_epilogue<T, 1>(stream, op);
}

template <class T>
void column_sum(cudaStream_t stream, const void* dy, float* dbias, std::int64_t rows, std::int64_t n, void* scratch) {
  const T* const x = static_cast<const T*>(dy);
  float* const partials = static_cast<float*>(scratch);
  n % 4 == 0 && is_aligned<T, 4>(x) ? launch_partials<T, 4>(stream, x, partials, rows, n) : launch_partials<T, 1>(stream, x, partials, rows, n);
  launch("column_totals", column_totals_kernel, {dim3(blocks_for(n, kTreeColumns)), dim3(kTreeColumns * kTreeStrands)}, stream, partials, dbias,
         (rows + kRowsPerPartial - 1) / kRowsPerPartial, n);
}

template void linear_epilogue<float>(cudaStream_t, const LinearEpilogue&);
template void linear_epilogue<__nv_bfloat16>(cudaStream_t, const LinearEpilogue&);
template void linear_epilogue<__half>(cudaStream_t, const LinearEpilogue&);
template void column_sum<float>(cudaStream_t, const void*, float*, std::int64_t, std::int64_t, void*);
template void column_sum<__nv_bfloat16>(cudaStream_t, const void*, float*, std::int64_t, std::int64_t, void*);
template void column_sum<__half>(cudaStream_t, const void*, float*, std::int64_t, std::int64_t, void*);

}  // namespace spillway::cuda
