// Backward of causal attention in two passes, so that nothing is added up by two blocks and results do not depend on
// timing: one block for each tile of queries makes dq, then one for each tile of keys makes dk and dv. Both recompute
// the probabilities from the forward's log-sum-exp (Dao 2023, arXiv:2307.08691, section 3.1, algorithm 2). With p the
// probabilities and dp = dy transpose(v):
//   dv = transpose(p) dy,   ds = p (dp - row sum of dy * y),   dq = scale ds k,   dk = scale transpose(ds) q
// The second pass works on transposes throughout: its rows are keys and its columns queries. Rows past the end of a
// tensor are zeros, as are their statistics here, and so add nothing anywhere.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "intrinsics/exp2.h"
#include "intrinsics/shared_memory.h"
#include "kernels/attention_forward.h"
#include "kernels/attention_tile.h"

namespace spillway::cuda::attention {

// Either pass: kRows rows of two matrices stay in shared memory, kTile rows of the other two come by. The second pass
// makes kOutColumns columns of dk and dv at a time, since a thread's accumulators are its registers.
template <class T, int kColumns>
struct BackwardShape {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kWarps = kHalf || kColumns <= 128 ? 4 : 2;
  static constexpr int kTile = (kHalf ? 2 : 1) * (kColumns <= (kHalf ? 64 : 16) ? 32 : kColumns <= 128 ? 16 : 8);
  static constexpr int kThreads = kWarps * gpu::kWarpSize;
  static constexpr int kRows = kWarps * 16;
  static constexpr int kOutColumns = kColumns <= 128 ? kColumns : kColumns / 2;
  static constexpr int kStride = attention::kStride<T, kColumns>;
  using Tiles = TilePairs<kThreads, kTile, kColumns, T>;
  static constexpr std::size_t kSharedBytes = (2 * kRows * kStride + Tiles::kElements) * sizeof(T);
};

// The sum of dy * y over a row, in all four lanes that share it.
template <class T>
__device__ float row_product(const Matrix<const T>& dy, const Matrix<const T>& y, int row) {
  float sum = 0.0f;
  if (row < dy.rows) {
    const T* left = dy.row(row);
    const T* right = y.row(row);
    for (int column = gpu::lane_index() % 4 * kVector<T>; column < dy.columns; column += 4 * kVector<T>) {
      if (dy.vectors) {
        const auto a = *reinterpret_cast<const Vector<T>*>(left + column);
        const auto b = *reinterpret_cast<const Vector<T>*>(right + column);
#pragma unroll
        for (int e = 0; e < kVector<T>; ++e) sum += gpu::to_float(a.elements[e]) * gpu::to_float(b.elements[e]);
      } else {
        for (int e = column; e < min(column + kVector<T>, dy.columns); ++e) sum += gpu::to_float(left[e]) * gpu::to_float(right[e]);
      }
    }
  }
  return quad_sum(sum);
}

// Scores of rows become the gradient of the scores, up to the scale: p (dp - product), statistics being of rows g and g + 8.
template <int N>
__device__ void score_gradients(float (&scores)[1][N][4], const float (&dp)[1][N][4], const float (&log_sum_exp)[2],
                                const float (&product)[2], float scale) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float p = gpu::fast_exp2(gpu::fma_rn(scores[0][n][e], scale * kLog2OfE, -log_sum_exp[e / 2]));
      scores[0][n][e] = p * (dp[0][n][e] - product[e / 2]);
    }
  }
}

// dq, and the row sums of dy * y, (B, heads, T), for the second pass.
template <class T, int kColumns>
__global__ void __launch_bounds__(BackwardShape<T, kColumns>::kThreads)
    backward_queries_kernel(AttentionBackward op, float* row_products, bool vectors) {
  using Shape = BackwardShape<T, kColumns>;
  SPILLWAY_SHARED_DYNAMIC(T, queries);
  T* const dys = queries + Shape::kRows * Shape::kStride;
  const int time = static_cast<int>(op.dims.time);
  const auto [head, first_row] = last_tile_first(time, Shape::kRows);
  const T* qkv = static_cast<const T*>(op.qkv);
  const auto dy = matrix_of(static_cast<const T*>(op.dy), op.dims, head, vectors);
  typename Shape::Tiles keys_and_values(dys + Shape::kRows * Shape::kStride, packed_matrix(qkv, op.dims, head, vectors, 1),
                                        packed_matrix(qkv, op.dims, head, vectors, 2));
  gpu::AsyncCopies copies;
  load_tile<Shape::kThreads, Shape::kRows, kColumns>(copies, queries, packed_matrix(qkv, op.dims, head, vectors, 0), first_row);
  load_tile<Shape::kThreads, Shape::kRows, kColumns>(copies, dys, dy, first_row);
  keys_and_values.load(copies, 0);
  copies.commit();

  const int warp_row = first_row + gpu::warp_index() * 16, offset = (warp_row - first_row) * Shape::kStride;
  const float scale = rsqrtf(static_cast<float>(op.dims.head_size));
  float log_sum_exp[2], product[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + half * 8 + gpu::lane_index() / 4;
    product[half] = row_product(dy, matrix_of(static_cast<const T*>(op.y), op.dims, head, vectors), row);
    log_sum_exp[half] = row < time ? op.log_sum_exp[head * time + row] * kLog2OfE : 0.0f;
    if (row < time && gpu::lane_index() % 4 == 0) row_products[head * time + row] = product[half];
  }

  float dq[1][kColumns / 8][4] = {};
  const int end = tiles_of(min(first_row + Shape::kRows, time), Shape::kTile);
  for (int tile = 0; tile < end; ++tile) {
    keys_and_values.advance(copies, tile, end);
    const int key = tile * Shape::kTile;
    if (warp_row < time && key < warp_row + 16) {
      float scores[1][Shape::kTile / 8][4] = {}, dp[1][Shape::kTile / 8][4] = {};
      multiply_transposed<kColumns>(scores, queries + offset, keys_and_values.first(tile));
      multiply_transposed<kColumns>(dp, dys + offset, keys_and_values.second(tile));
      if (key + Shape::kTile > warp_row + 1) mask_future(scores, warp_row, key);
      score_gradients(scores, dp, log_sum_exp, product, scale);
      multiply<Shape::kStride>(dq, scores, keys_and_values.first(tile));
    }
    keys_and_values.release();
  }
  if (warp_row < time) {
    const float factor[1][2] = {{scale, scale}};
    store_tile(dq, factor, packed_matrix(static_cast<T*>(op.dqkv), op.dims, head, vectors, 0), warp_row, 0);
  }
}

// One value of each query that is column 2t or 2t + 1 of one of N fragments.
template <int N>
__device__ void load_columns(float (&out)[N][2], const float* of_query, int first, int time) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int query = first + n * 8 + gpu::lane_index() % 4 * 2 + e;
      out[n][e] = query < time ? of_query[query] : 0.0f;
    }
  }
}

// Transposed scores become probabilities: columns are queries, from `query`, and rows keys, from `key`.
template <int N>
__device__ void column_probabilities(float (&scores)[1][N][4], const float (&log_sum_exp)[N][2], float scale, int key, int query) {
  const int own_key = key + gpu::lane_index() / 4, own_query = query + gpu::lane_index() % 4 * 2;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool future = own_key + e / 2 * 8 > own_query + n * 8 + e % 2;
      const float p = gpu::fast_exp2(gpu::fma_rn(scores[0][n][e], scale * kLog2OfE, -kLog2OfE * log_sum_exp[n][e % 2]));
      scores[0][n][e] = future ? 0.0f : p;
    }
  }
}

// Probabilities become the gradient of the scores, up to the scale.
template <int N>
__device__ void column_gradients(float (&p)[1][N][4], const float (&dp)[1][N][4], const float (&product)[N][2]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) p[0][n][e] *= dp[0][n][e] - product[n][e % 2];
  }
}

// Columns [blockIdx.y * kOutColumns, + kOutColumns) of dk and dv.
template <class T, int kColumns>
__global__ void __launch_bounds__(BackwardShape<T, kColumns>::kThreads)
    backward_keys_kernel(AttentionBackward op, const float* row_products, bool vectors) {
  using Shape = BackwardShape<T, kColumns>;
  SPILLWAY_SHARED_DYNAMIC(T, keys);
  T* const values = keys + Shape::kRows * Shape::kStride;
  // The first tile of keys, which has the most queries, comes first.
  const int time = static_cast<int>(op.dims.time);
  const auto row_tiles = static_cast<unsigned>(tiles_of(time, Shape::kRows));
  const std::int64_t head = blockIdx.x / row_tiles;
  const int first_row = static_cast<int>(blockIdx.x % row_tiles) * Shape::kRows;
  const int out_column = static_cast<int>(blockIdx.y) * Shape::kOutColumns;
  const T* qkv = static_cast<const T*>(op.qkv);
  typename Shape::Tiles queries_and_dys(values + Shape::kRows * Shape::kStride, packed_matrix(qkv, op.dims, head, vectors, 0),
                                        matrix_of(static_cast<const T*>(op.dy), op.dims, head, vectors));
  const int begin = first_row / Shape::kTile, end = tiles_of(time, Shape::kTile);
  gpu::AsyncCopies copies;
  load_tile<Shape::kThreads, Shape::kRows, kColumns>(copies, keys, packed_matrix(qkv, op.dims, head, vectors, 1), first_row);
  load_tile<Shape::kThreads, Shape::kRows, kColumns>(copies, values, packed_matrix(qkv, op.dims, head, vectors, 2), first_row);
  queries_and_dys.load(copies, begin);
  copies.commit();

  const int warp_row = first_row + gpu::warp_index() * 16, offset = (warp_row - first_row) * Shape::kStride;
  const float scale = rsqrtf(static_cast<float>(op.dims.head_size));
  float dk[1][Shape::kOutColumns / 8][4] = {}, dv[1][Shape::kOutColumns / 8][4] = {};
  for (int tile = begin; tile < end; ++tile) {
    queries_and_dys.advance(copies, tile, end);
    const int query = tile * Shape::kTile;
    if (warp_row < time && query + Shape::kTile > warp_row) {
      float p[1][Shape::kTile / 8][4] = {}, dp[1][Shape::kTile / 8][4] = {}, of_query[Shape::kTile / 8][2];
      load_columns(of_query, op.log_sum_exp + head * time, query, time);
      multiply_transposed<kColumns>(p, keys + offset, queries_and_dys.first(tile));
      column_probabilities(p, of_query, scale, warp_row, query);
      multiply<Shape::kStride>(dv, p, queries_and_dys.second(tile) + out_column);
      load_columns(of_query, row_products + head * time, query, time);
      multiply_transposed<kColumns>(dp, values + offset, queries_and_dys.second(tile));
      column_gradients(p, dp, of_query);
      multiply<Shape::kStride>(dk, p, queries_and_dys.first(tile) + out_column);
    }
    queries_and_dys.release();
  }
  if (warp_row < time) {
    const float scaled[1][2] = {{scale, scale}}, unscaled[1][2] = {{1.0f, 1.0f}};
    store_tile(dk, scaled, packed_matrix(static_cast<T*>(op.dqkv), op.dims, head, vectors, 1), warp_row, out_column);
    store_tile(dv, unscaled, packed_matrix(static_cast<T*>(op.dqkv), op.dims, head, vectors, 2), warp_row, out_column);
  }
}

}  // namespace spillway::cuda::attention
