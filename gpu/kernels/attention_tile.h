// Tiles of attention: how a head's rows come into shared memory, and the two products that a warp makes of them. The
// products have one form for 16-bit storage (tensor cores) and one for f32 (FMA), with the same sums in the same lanes.
//
// An accumulator float[kRowTiles][N][4] is a warp's (16 kRowTiles, 8 N) matrix as N fragments c of intrinsics/mma.h side
// by side: lane 4g + t holds of row g (+ 8 for elements 2, 3) the columns 2t and 2t + 1 of every fragment.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "intrinsics/copy_async.h"
#include "intrinsics/math.h"
#include "intrinsics/mma.h"
#include "intrinsics/warp.h"
#include "spillway/ops.h"

namespace spillway::cuda::attention {

// Elements of a 16-byte load.
template <class T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

// Rows in shared memory are 16 bytes longer than their columns, so that eight rows of 16 bytes touch every bank once.
template <class T, int kColumns>
inline constexpr int kStride = kColumns + kVector<T>;

template <class T>
struct alignas(16) Vector {
  T elements[kVector<T>];
};

template <class T>
struct alignas(2 * sizeof(T)) Pair {
  T first, second;
};

__device__ constexpr int tiles_of(int n, int tile) { return (n + tile - 1) / tile; }

// (time, head_size) of one head inside an array of rows for all heads.
template <class T>
struct Matrix {
  T* data;
  std::int64_t row_stride;
  int rows, columns;
  bool vectors;  // columns are a multiple of kVector<T>, and so aligned

  __device__ T* row(int index) const { return data + index * row_stride; }
};

// The matrices of head `index` of (B, T, heads, head_size), and of the `which`th of (B, T, 3, heads, head_size).
template <class T>
__device__ Matrix<T> matrix_of(T* array, const AttentionDims& dims, std::int64_t index, bool vectors, int of_row = 1,
                               int which = 0) {
  const std::int64_t channels = dims.heads * dims.head_size, stride = of_row * channels;
  const std::int64_t offset = index / dims.heads * dims.time * stride + which * channels + index % dims.heads * dims.head_size;
  return {array + offset, stride, static_cast<int>(dims.time), static_cast<int>(dims.head_size), vectors};
}
template <class T>
__device__ Matrix<T> packed_matrix(T* array, const AttentionDims& dims, std::int64_t index, bool vectors, int which) {
  return matrix_of(array, dims, index, vectors, 3, which);
}

// Starts to bring rows [first, first + kRows) to shared memory, kColumns of each; what the matrix does not have is zero.
// Visible to the block after the copies' wait and a barrier.
template <int kThreads, int kRows, int kColumns, class T>
__device__ void load_tile(gpu::AsyncCopies& copies, T* shared, const Matrix<const T>& matrix, int first) {
  constexpr int kVectors = kColumns / kVector<T>;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kVectors; i += kThreads) {
    const int row = i / kVectors, column = i % kVectors * kVector<T>;
    const bool has_row = first + row < matrix.rows;
    const T* from = matrix.row(first + row) + column;  // read only where it is the matrix's
    T* to = shared + row * kStride<T, kColumns> + column;
    if (matrix.vectors) {
      copies.copy_16(to, from, has_row && column < matrix.columns);
    } else {
      for (int e = 0; e < kVector<T>; ++e) to[e] = has_row && column + e < matrix.columns ? from[e] : T(0.0f);
    }
  }
}

// Two matrices of which tiles of kRows rows come by, the next one while the block works on the present one.
template <int kThreads, int kRows, int kColumns, class T>
class TilePairs {
 public:
  static constexpr int kTileElements = kRows * kStride<T, kColumns>;
  static constexpr int kElements = 4 * kTileElements;  // of shared memory

  __device__ TilePairs(T* shared, const Matrix<const T>& first, const Matrix<const T>& second)
      : shared_(shared), first_(first), second_(second) {}

  __device__ void load(gpu::AsyncCopies& copies, int tile) {
    load_tile<kThreads, kRows, kColumns>(copies, shared_ + tile % 2 * kTileElements, first_, tile * kRows);
    load_tile<kThreads, kRows, kColumns>(copies, shared_ + (2 + tile % 2) * kTileElements, second_, tile * kRows);
  }

  // Waits until `tile`, started by an earlier load() and commit(), is there for the whole block; starts the next, unless
  // that is `end`.
  __device__ void advance(gpu::AsyncCopies& copies, int tile, int end) {
    if (tile + 1 < end) load(copies, tile + 1);
    copies.commit();
    copies.template wait<1>();
    __syncthreads();
  }

  // Before the next advance(), which loads into the tile that the block has worked on.
  __device__ void release() { __syncthreads(); }

  __device__ const T* first(int tile) const { return shared_ + tile % 2 * kTileElements; }
  __device__ const T* second(int tile) const { return shared_ + (2 + tile % 2) * kTileElements; }

 private:
  T* shared_;
  Matrix<const T> first_, second_;
};

// Rows of the warp's accumulator times `factor[row tile][0 for row g, 1 for row g + 8]` into the rows from `first` and the
// columns from `first_column` of the matrix, as far as it has them.
template <class T, int kRowTiles, int N>
__device__ void store_tile(const float (&c)[kRowTiles][N][4], const float (&factor)[kRowTiles][2], const Matrix<T>& matrix,
                           int first, int first_column) {
  const int g = gpu::lane_index() / 4, t = gpu::lane_index() % 4;
#pragma unroll
  for (int half = 0; half < 2 * kRowTiles; ++half) {
    const int row = first + half * 8 + g;
    const float scale = factor[half / 2][half % 2];
    if (row < matrix.rows) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int column = first_column + n * 8 + 2 * t;
        T* to = matrix.row(row) + column;
        const Pair<T> pair{gpu::from_float<T>(c[half / 2][n][half % 2 * 2] * scale),
                           gpu::from_float<T>(c[half / 2][n][half % 2 * 2 + 1] * scale)};
        if (matrix.vectors) {
          if (column < matrix.columns) *reinterpret_cast<Pair<T>*>(to) = pair;
        } else {
          if (column < matrix.columns) to[0] = pair.first;
          if (column + 1 < matrix.columns) to[1] = pair.second;
        }
      }
    }
  }
}

// Two values in one register, the first in the lower half.
template <class T>
__device__ unsigned pack(float first, float second);
template <>
__device__ inline unsigned pack<__half>(float first, float second) {
  return static_cast<unsigned>(__half_as_ushort(__float2half_rn(first))) |
         static_cast<unsigned>(__half_as_ushort(__float2half_rn(second))) << 16;
}
template <>
__device__ inline unsigned pack<__nv_bfloat16>(float first, float second) {
  return static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(first))) |
         static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(second))) << 16;
}

// c (16 kRowTiles, 8 N) += a * transpose(b). a: the warp's rows, b: 8 N rows, kColumns of each, in shared memory.
template <int kColumns, class T, int kRowTiles, int N>
__device__ void multiply_transposed(float (&c)[kRowTiles][N][4], const T* a, const T* b) {
  constexpr int stride = kStride<T, kColumns>;
  const int lane = gpu::lane_index();
  const T* a_row = a + lane % 16 * stride + lane / 16 * 8;
  const T* b_row = b + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
// More at a time would only have the compiler load ahead into registers that it does not have.
#pragma unroll 4
  for (int k = 0; k < kColumns; k += 16) {
    unsigned left[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) gpu::load_matrices(left[r], a_row + r * 16 * stride + k);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      unsigned right[4];
      gpu::load_matrices(right, b_row + n * 8 * stride + k);
      const unsigned even[2] = {right[0], right[1]}, odd[2] = {right[2], right[3]};
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        gpu::mma_tile<T>(c[r][n], left[r], even);
        gpu::mma_tile<T>(c[r][n + 1], left[r], odd);
      }
    }
  }
}

template <int kColumns, int kRowTiles, int N>
__device__ void multiply_transposed(float (&c)[kRowTiles][N][4], const float* a, const float* b) {
  constexpr int stride = kStride<float, kColumns>;
  const int g = gpu::lane_index() / 4, t = gpu::lane_index() % 4;
#pragma unroll 2
  for (int k = 0; k < kColumns; k += 4) {
    Vector<float> left[kRowTiles][2];
#pragma unroll
    for (int half = 0; half < 2 * kRowTiles; ++half) {
      left[half / 2][half % 2] = *reinterpret_cast<const Vector<float>*>(a + (half * 8 + g) * stride + k);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const auto right = *reinterpret_cast<const Vector<float>*>(b + (n * 8 + 2 * t + column) * stride + k);
#pragma unroll
        for (int half = 0; half < 2 * kRowTiles; ++half) {
          float& sum = c[half / 2][n][half % 2 * 2 + column];
#pragma unroll
          for (int e = 0; e < 4; ++e) sum = gpu::fma_rn(left[half / 2][half % 2].elements[e], right.elements[e], sum);
        }
      }
    }
  }
}

// c (16 kRowTiles, 8 N) += p * b. p (16 kRowTiles, 8 K): the warp's accumulator, rounded to T; b: 8 K rows in shared memory,
// `stride` apart, 8 N columns of each.
template <int stride, class T, int kRowTiles, int K, int N>
__device__ void multiply(float (&c)[kRowTiles][N][4], const float (&p)[kRowTiles][K][4], const T* b) {
  const int lane = gpu::lane_index();
  const T* b_row = b + lane % 16 * stride + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < K; k += 2) {
    // The accumulators of 16 columns are, element for element, the fragment of a.
    unsigned left[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) left[r][i] = pack<T>(p[r][k + i / 2][i % 2 * 2], p[r][k + i / 2][i % 2 * 2 + 1]);
    }
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      unsigned right[4];
      gpu::load_matrices_transposed(right, b_row + k * 8 * stride + n * 8);
      const unsigned even[2] = {right[0], right[1]}, odd[2] = {right[2], right[3]};
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        gpu::mma_tile<T>(c[r][n], left[r], even);
        gpu::mma_tile<T>(c[r][n + 1], left[r], odd);
      }
    }
  }
}

template <int stride, int kRowTiles, int K, int N>
__device__ void multiply(float (&c)[kRowTiles][N][4], const float (&p)[kRowTiles][K][4], const float* b) {
  const int lane = gpu::lane_index(), t = lane % 4;
#pragma unroll
  for (int k = 0; k < 8 * K; ++k) {
    // Column k of p, from the lane of each row that has it.
    const int source = lane / 4 * 4 + k % 8 / 2;
    float left[2 * kRowTiles];
#pragma unroll
    for (int half = 0; half < 2 * kRowTiles; ++half) {
      left[half] = gpu::broadcast(p[half / 2][k / 8][half % 2 * 2 + k % 2], source);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const auto right = *reinterpret_cast<const Pair<float>*>(b + k * stride + n * 8 + 2 * t);
#pragma unroll
      for (int half = 0; half < 2 * kRowTiles; ++half) {
        float* sums = c[half / 2][n] + half % 2 * 2;
        sums[0] = gpu::fma_rn(left[half], right.first, sums[0]);
        sums[1] = gpu::fma_rn(left[half], right.second, sums[1]);
      }
    }
  }
}

}  // namespace spillway::cuda::attention
