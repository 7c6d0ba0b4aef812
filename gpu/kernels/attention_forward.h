// Forward of causal attention, one block for each tile of queries of a head: softmax over the keys as they come by, in the
// manner of FlashAttention-2 (Dao 2023, arXiv:2307.08691, section 3.1).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "intrinsics/shared_memory.h"
#include "kernels/attention_tile.h"

namespace spillway::cuda::attention {

inline constexpr float kLog2OfE = 1.44269504f, kLnOf2 = 0.693147181f;

// What a block works on, and the shared memory that takes. Accumulators of a warp: kRowTiles * (kColumns + kKeys) / 2
// registers a thread.
template <class T, int kColumns>
struct ForwardShape {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kWarps = kHalf || kColumns <= 128 ? 4 : 2;
  static constexpr int kRowTiles = kHalf && kColumns <= 128 ? 2 : 1;
  static constexpr int kKeys = kHalf ? (kColumns <= 64 ? 64 : 32) : (kColumns <= 64 ? 32 : 16);
  static constexpr int kThreads = kWarps * gpu::kWarpSize;
  static constexpr int kWarpRows = kRowTiles * 16;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kRowElements = kStride<T, kColumns>;
  static constexpr int kKeyElements = kKeys * kRowElements;                // a tile of keys or values
  static constexpr std::size_t kSharedBytes = (kRows + 4 * kKeys) * kRowElements * sizeof(T);  // queries, two tiles each of keys and values
};

// Online softmax of a warp's rows: largest score and sum so far of rows g and g + 8 of each row tile.
template <int kRowTiles>
struct RowState {
  float largest[kRowTiles][2];  // scaled, in units of log2
  float sum[kRowTiles][2];      // of the lane's own columns
};

// Scores of keys that come after their query are taken out. `row` and `key` are those of element (0, 0).
template <int kRowTiles, int N>
__device__ void mask_future(float (&scores)[kRowTiles][N][4], int row, int key) {
  const int own_row = row + gpu::lane_index() / 4, own_key = key + gpu::lane_index() % 4 * 2;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (own_key + n * 8 + e % 2 > own_row + r * 16 + e / 2 * 8) scores[r][n][e] = -INFINITY;
      }
    }
  }
}

// Over the four lanes that share a row, in every one of them.
__device__ inline float quad_max(float value) {
  value = fmaxf(value, gpu::shuffle_xor(value, 1));
  return fmaxf(value, gpu::shuffle_xor(value, 2));
}
__device__ inline float quad_sum(float value) {
  value += gpu::shuffle_xor(value, 1);
  return value + gpu::shuffle_xor(value, 2);
}

// Scores become e^(score - largest); what the rows have summed so far, y included, is rescaled to the new largest.
template <int kRowTiles, int K, int N>
__device__ void update_softmax(float (&scores)[kRowTiles][K][4], RowState<kRowTiles>& state, float (&y)[kRowTiles][N][4], float scale) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < K; ++n) largest = fmaxf(largest, fmaxf(scores[r][n][2 * half], scores[r][n][2 * half + 1]));
      largest = fmaxf(state.largest[r][half], quad_max(largest) * scale);
      const float correction = exp2f(state.largest[r][half] - largest);
      state.largest[r][half] = largest;
      float sum = state.sum[r][half] * correction;
#pragma unroll
      for (int n = 0; n < K; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) sum += scores[r][n][e] = exp2f(gpu::fma_rn(scores[r][n][e], scale, -largest));
      }
      state.sum[r][half] = sum;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        y[r][n][2 * half] *= correction;
        y[r][n][2 * half + 1] *= correction;
      }
    }
  }
}

// Divides by the sums, and leaves the log-sum-exp.
template <int kRowTiles, int N, class T>
__device__ void finish_rows(const float (&y)[kRowTiles][N][4], const RowState<kRowTiles>& state, const Matrix<T>& out, float* log_sum_exp,
                            int first) {
  float factor[kRowTiles][2];
#pragma unroll
  for (int half = 0; half < 2 * kRowTiles; ++half) {
    const float sum = quad_sum(state.sum[half / 2][half % 2]);
    const int row = first + half * 8 + gpu::lane_index() / 4;
    factor[half / 2][half % 2] = 1.0f / sum;
    if (row < out.rows && gpu::lane_index() % 4 == 0) log_sum_exp[row] = (state.largest[half / 2][half % 2] + log2f(sum)) * kLnOf2;
  }
  store_tile(y, factor, out, first, 0);
}

template <class T, int kColumns>
__global__ void __launch_bounds__(ForwardShape<T, kColumns>::kThreads) forward_kernel(AttentionForward op, bool vectors) {
  using Shape = ForwardShape<T, kColumns>;
  SPILLWAY_SHARED_DYNAMIC(T, queries);
  T* const keys = queries + Shape::kRows * Shape::kRowElements;
  T* const values = keys + 2 * Shape::kKeyElements;

  // A head's tiles one after another, since they read the same keys; the longest, which is the last, first.
  const int time = static_cast<int>(op.dims.time), row_tiles = tiles_of(time, Shape::kRows);
  const std::int64_t head = blockIdx.x / static_cast<unsigned>(row_tiles);
  const int first_row = (row_tiles - 1 - static_cast<int>(blockIdx.x % static_cast<unsigned>(row_tiles))) * Shape::kRows;
  const T* qkv = static_cast<const T*>(op.qkv);
  const auto q = packed_matrix(qkv, op.dims, head, vectors, 0);
  const auto k = packed_matrix(qkv, op.dims, head, vectors, 1);
  const auto v = packed_matrix(qkv, op.dims, head, vectors, 2);

  gpu::AsyncCopies copies;
  load_tile<Shape::kRows, kColumns>(copies, queries, q, first_row);
  load_tile<Shape::kKeys, kColumns>(copies, keys, k, 0);
  load_tile<Shape::kKeys, kColumns>(copies, values, v, 0);
  copies.commit();

  const int warp_row = first_row + gpu::warp_index() * Shape::kWarpRows;
  const T* warp_queries = queries + (warp_row - first_row) * Shape::kRowElements;
  const float scale = kLog2OfE * rsqrtf(static_cast<float>(op.dims.head_size));
  float y[Shape::kRowTiles][kColumns / 8][4] = {};
  RowState<Shape::kRowTiles> state;
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    state.largest[r][0] = state.largest[r][1] = -INFINITY;
    state.sum[r][0] = state.sum[r][1] = 0.0f;
  }

  const int key_tiles = tiles_of(min(first_row + Shape::kRows, time), Shape::kKeys);
  for (int tile = 0; tile < key_tiles; ++tile) {
    const int key = tile * Shape::kKeys, next = (tile + 1) % 2 * Shape::kKeyElements, current = tile % 2 * Shape::kKeyElements;
    if (tile + 1 < key_tiles) {
      load_tile<Shape::kKeys, kColumns>(copies, keys + next, k, key + Shape::kKeys);
      load_tile<Shape::kKeys, kColumns>(copies, values + next, v, key + Shape::kKeys);
    }
    copies.commit();
    copies.template wait<1>();
    __syncthreads();
    // The same for all lanes of a warp.
    if (warp_row < time && key < warp_row + Shape::kWarpRows) {
      float scores[Shape::kRowTiles][Shape::kKeys / 8][4] = {};
      multiply_transposed<kColumns>(scores, warp_queries, keys + current);
      if (key + Shape::kKeys > warp_row + 1) mask_future(scores, warp_row, key);
      update_softmax(scores, state, y, scale);
      multiply<Shape::kRowElements>(y, scores, values + current);
    }
    __syncthreads();  // the next round loads into this tile
  }
  if (warp_row < time) {
    finish_rows(y, state, matrix_of(static_cast<T*>(op.y), op.dims, head, vectors), op.log_sum_exp + head * time, warp_row);
  }
}

}  // namespace spillway::cuda::attention
