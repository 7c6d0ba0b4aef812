// Forward of causal attention, one block for each tile of queries of a head: softmax over the keys as they come by, in the
// manner of FlashAttention-2 (Dao 2023, arXiv:2307.08691, section 3.1).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "intrinsics/exp2.h"
#include "intrinsics/shared_memory.h"
#include "kernels/attention_tile.h"

namespace spillway::cuda::attention {

inline constexpr float kLog2OfE = 1.44269504f, kLnOf2 = 0.693147181f;

// What a block works on. Accumulators of a warp: kRowTiles * (kColumns + kKeys) / 2 registers a thread.
template <class T, int kColumns>
struct ForwardShape {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kWarps = kHalf || kColumns <= 128 ? 4 : 2;
  static constexpr int kRowTiles = kHalf && kColumns <= 128 ? 2 : 1;
  static constexpr int kKeys = (kHalf ? 2 : 1) * (kColumns <= 64 ? 32 : 16);
  static constexpr int kThreads = kWarps * gpu::kWarpSize;
  static constexpr int kWarpRows = kRowTiles * 16;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kStride = attention::kStride<T, kColumns>;
  using KeysAndValues = TilePairs<kThreads, kKeys, kColumns, T>;
  static constexpr std::size_t kSharedBytes = (kRows * kStride + KeysAndValues::kElements) * sizeof(T);
};

// Online softmax of a warp's rows: largest score and sum so far of rows g and g + 8 of each row tile.
template <int kRowTiles>
struct RowState {
  float largest[kRowTiles][2];   // scaled, in units of log2
  float sum[kRowTiles][2] = {};  // of the lane's own columns

  __device__ RowState() {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) largest[r][0] = largest[r][1] = -INFINITY;
  }
};

// Which rows of which head a block works on.
struct BlockRows {
  std::int64_t head;
  int first;
};

// A head's tiles one after another, since they read the same keys; the longest, which is the last, first.
__device__ inline BlockRows last_tile_first(int time, int rows) {
  const auto tiles = static_cast<unsigned>(tiles_of(time, rows));
  return {blockIdx.x / tiles, static_cast<int>(tiles - 1 - blockIdx.x % tiles) * rows};
}

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
__device__ void update_softmax(float (&scores)[kRowTiles][K][4], RowState<kRowTiles>& state, float (&y)[kRowTiles][N][4],
                               float scale) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < K; ++n) largest = fmaxf(largest, fmaxf(scores[r][n][2 * half], scores[r][n][2 * half + 1]));
      largest = fmaxf(state.largest[r][half], quad_max(largest) * scale);
      const float correction = gpu::fast_exp2(state.largest[r][half] - largest);
      state.largest[r][half] = largest;
      float sum = state.sum[r][half] * correction;
#pragma unroll
      for (int n = 0; n < K; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          sum += scores[r][n][e] = gpu::fast_exp2(gpu::fma_rn(scores[r][n][e], scale, -largest));
        }
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
__device__ void finish_rows(const float (&y)[kRowTiles][N][4], const RowState<kRowTiles>& state, const Matrix<T>& out,
                            float* log_sum_exp, int first) {
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
  const int time = static_cast<int>(op.dims.time);
  const auto [head, first_row] = last_tile_first(time, Shape::kRows);
  const T* qkv = static_cast<const T*>(op.qkv);
  typename Shape::KeysAndValues keys_and_values(queries + Shape::kRows * Shape::kStride,
                                                packed_matrix(qkv, op.dims, head, vectors, 1),
                                                packed_matrix(qkv, op.dims, head, vectors, 2));
  gpu::AsyncCopies copies;
  load_tile<Shape::kThreads, Shape::kRows, kColumns>(copies, queries, packed_matrix(qkv, op.dims, head, vectors, 0), first_row);
  keys_and_values.load(copies, 0);
  copies.commit();

  const int warp_row = first_row + gpu::warp_index() * Shape::kWarpRows;
  const T* warp_queries = queries + (warp_row - first_row) * Shape::kStride;
  const float scale = kLog2OfE * rsqrtf(static_cast<float>(op.dims.head_size));
  float y[Shape::kRowTiles][kColumns / 8][4] = {};
  RowState<Shape::kRowTiles> state;
  const int end = tiles_of(min(first_row + Shape::kRows, time), Shape::kKeys);
  for (int tile = 0; tile < end; ++tile) {
    keys_and_values.advance(copies, tile, end);
    const int key = tile * Shape::kKeys;
    // The same for all lanes of a warp.
    if (warp_row < time && key < warp_row + Shape::kWarpRows) {
      float scores[Shape::kRowTiles][Shape::kKeys / 8][4] = {};
      multiply_transposed<kColumns>(scores, warp_queries, keys_and_values.first(tile));
      if (key + Shape::kKeys > warp_row + 1) mask_future(scores, warp_row, key);
      update_softmax(scores, state, y, scale);
      multiply<Shape::kStride>(y, scores, keys_and_values.second(tile));
    }
    keys_and_values.release();
  }
  if (warp_row < time) {
    finish_rows(y, state, matrix_of(static_cast<T*>(op.y), op.dims, head, vectors), op.log_sum_exp + head * time, warp_row);
  }
}

}  // namespace spillway::cuda::attention
