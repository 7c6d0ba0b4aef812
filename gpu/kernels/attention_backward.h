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

#include "intrinsics/shared_memory.h"
#include "kernels/attention_forward.h"
#include "kernels/attention_tile.h"

namespace spillway::cuda::attention {

// Either pass: kRows rows (of queries and dy, or of keys and values) stay in shared memory, kTile rows of the other two
// matrices come by, twice buffered. The second pass makes kOutColumns columns of dk and dv at a time, since a thread's
// accumulators are its registers.
template <class T, int kColumns>
struct BackwardShape {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kWarps = kHalf || kColumns <= 128 ? 4 : 2;
  static constexpr int kTile = kHalf ? (kColumns <= 64 ? 64 : kColumns <= 128 ? 32 : 16) : (kColumns <= 16 ? 32 : kColumns <= 128 ? 16 : 8);
  static constexpr int kThreads = kWarps * gpu::kWarpSize;
  static constexpr int kRows = kWarps * 16;
  static constexpr int kOutColumns = kColumns <= 128 ? kColumns : kColumns / 2;
  static constexpr int kRowElements = kStride<T, kColumns>;
  static constexpr int kTileElements = kTile * kRowElements;
  static constexpr std::size_t kSharedBytes = (2 * kRows + 4 * kTile) * kRowElements * sizeof(T);
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

// dq, and the row sums of dy * y, (B, heads, T), for the second pass.
template <class T, int kColumns>
__global__ void __launch_bounds__(BackwardShape<T, kColumns>::kThreads) backward_queries_kernel(AttentionBackward op, float* row_products,
                                                                                                          bool vectors) {
  using Shape = BackwardShape<T, kColumns>;
  SPILLWAY_SHARED_DYNAMIC(T, queries);
  T* const dys = queries + Shape::kRows * Shape::kRowElements;
  T* const keys = dys + Shape::kRows * Shape::kRowElements;
  T* const values = keys + 2 * Shape::kTileElements;

  const int time = static_cast<int>(op.dims.time), row_tiles = tiles_of(time, Shape::kRows);
  const std::int64_t head = blockIdx.x / static_cast<unsigned>(row_tiles);
  const int first_row = (row_tiles - 1 - static_cast<int>(blockIdx.x % static_cast<unsigned>(row_tiles))) * Shape::kRows;
  const T* qkv = static_cast<const T*>(op.qkv);
  const auto k = packed_matrix(qkv, op.dims, head, vectors, 1);
  const auto v = packed_matrix(qkv, op.dims, head, vectors, 2);
  const auto dy = matrix_of(static_cast<const T*>(op.dy), op.dims, head, vectors);

  gpu::AsyncCopies copies;
  load_tile<Shape::kRows, kColumns>(copies, queries, packed_matrix(qkv, op.dims, head, vectors, 0), first_row);
  load_tile<Shape::kRows, kColumns>(copies, dys, dy, first_row);
  load_tile<Shape::kTile, kColumns>(copies, keys, k, 0);
  load_tile<Shape::kTile, kColumns>(copies, values, v, 0);
  copies.commit();

  const int warp_row = first_row + gpu::warp_index() * 16, offset = (warp_row - first_row) * Shape::kRowElements;
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
  const int key_tiles = tiles_of(min(first_row + Shape::kRows, time), Shape::kTile);
  for (int tile = 0; tile < key_tiles; ++tile) {
    const int key = tile * Shape::kTile, next = (tile + 1) % 2 * Shape::kTileElements, current = tile % 2 * Shape::kTileElements;
    if (tile + 1 < key_tiles) {
      load_tile<Shape::kTile, kColumns>(copies, keys + next, k, key + Shape::kTile);
      load_tile<Shape::kTile, kColumns>(copies, values + next, v, key + Shape::kTile);
    }
    copies.commit();
    copies.template wait<1>();
    __syncthreads();
    if (warp_row < time && key < warp_row + 16) {
      float scores[1][Shape::kTile / 8][4] = {}, dp[1][Shape::kTile / 8][4] = {};
      multiply_transposed<kColumns>(scores, queries + offset, keys + current);
      multiply_transposed<kColumns>(dp, dys + offset, values + current);
      if (key + Shape::kTile > warp_row + 1) mask_future(scores, warp_row, key);
#pragma unroll
      for (int n = 0; n < Shape::kTile / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float p = exp2f(gpu::fma_rn(scores[0][n][e], scale * kLog2OfE, -log_sum_exp[e / 2]));
          scores[0][n][e] = p * (dp[0][n][e] - product[e / 2]);
        }
      }
      multiply<Shape::kRowElements>(dq, scores, keys + current);
    }
    __syncthreads();  // the next round loads into this tile
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

// Columns [blockIdx.y * kOutColumns, + kOutColumns) of dk and dv.
template <class T, int kColumns>
__global__ void __launch_bounds__(BackwardShape<T, kColumns>::kThreads) backward_keys_kernel(AttentionBackward op, const float* row_products,
                                                                                                       bool vectors) {
  using Shape = BackwardShape<T, kColumns>;
  SPILLWAY_SHARED_DYNAMIC(T, keys);
  T* const values = keys + Shape::kRows * Shape::kRowElements;
  T* const queries = values + Shape::kRows * Shape::kRowElements;
  T* const dys = queries + 2 * Shape::kTileElements;

  // The first tile of keys, which has the most queries, comes first.
  const int time = static_cast<int>(op.dims.time), row_tiles = tiles_of(time, Shape::kRows);
  const std::int64_t head = blockIdx.x / static_cast<unsigned>(row_tiles);
  const int first_row = static_cast<int>(blockIdx.x % static_cast<unsigned>(row_tiles)) * Shape::kRows;
  const int out_column = static_cast<int>(blockIdx.y) * Shape::kOutColumns;
  const T* qkv = static_cast<const T*>(op.qkv);
  const auto q = packed_matrix(qkv, op.dims, head, vectors, 0);
  const auto dy = matrix_of(static_cast<const T*>(op.dy), op.dims, head, vectors);
  const float* log_sum_exp = op.log_sum_exp + head * time;

  const int first_tile = first_row / Shape::kTile, query_tiles = tiles_of(time, Shape::kTile);
  gpu::AsyncCopies copies;
  load_tile<Shape::kRows, kColumns>(copies, keys, packed_matrix(qkv, op.dims, head, vectors, 1), first_row);
  load_tile<Shape::kRows, kColumns>(copies, values, packed_matrix(qkv, op.dims, head, vectors, 2), first_row);
  load_tile<Shape::kTile, kColumns>(copies, queries + first_tile % 2 * Shape::kTileElements, q, first_tile * Shape::kTile);
  load_tile<Shape::kTile, kColumns>(copies, dys + first_tile % 2 * Shape::kTileElements, dy, first_tile * Shape::kTile);
  copies.commit();

  const int warp_row = first_row + gpu::warp_index() * 16, offset = (warp_row - first_row) * Shape::kRowElements;
  const float scale = rsqrtf(static_cast<float>(op.dims.head_size));
  float dk[1][Shape::kOutColumns / 8][4] = {}, dv[1][Shape::kOutColumns / 8][4] = {};
  for (int tile = first_tile; tile < query_tiles; ++tile) {
    const int query = tile * Shape::kTile, next = (tile + 1) % 2 * Shape::kTileElements, current = tile % 2 * Shape::kTileElements;
    if (tile + 1 < query_tiles) {
      load_tile<Shape::kTile, kColumns>(copies, queries + next, q, query + Shape::kTile);
      load_tile<Shape::kTile, kColumns>(copies, dys + next, dy, query + Shape::kTile);
    }
    copies.commit();
    copies.template wait<1>();
    __syncthreads();
    if (warp_row < time && query + Shape::kTile > warp_row) {
      constexpr int kFragments = Shape::kTile / 8;
      float p[1][kFragments][4] = {}, dp[1][kFragments][4] = {}, of_column[kFragments][2];
      load_columns(of_column, log_sum_exp, query, time);
      multiply_transposed<kColumns>(p, keys + offset, queries + current);
      const int own_row = warp_row + gpu::lane_index() / 4, own_column = query + gpu::lane_index() % 4 * 2;
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const bool future = own_row + e / 2 * 8 > own_column + n * 8 + e % 2;
          p[0][n][e] = future ? 0.0f : exp2f(gpu::fma_rn(p[0][n][e], scale * kLog2OfE, -kLog2OfE * of_column[n][e % 2]));
        }
      }
      multiply<Shape::kRowElements>(dv, p, dys + current + out_column);
      load_columns(of_column, row_products + head * time, query, time);
      multiply_transposed<kColumns>(dp, values + offset, dys + current);
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) dp[0][n][e] = p[0][n][e] * (dp[0][n][e] - of_column[n][e % 2]);
      }
      multiply<Shape::kRowElements>(dk, dp, queries + current + out_column);
    }
    __syncthreads();  // the next round loads into this tile
  }
  if (warp_row < time) {
    const float scaled[1][2] = {{scale, scale}}, unscaled[1][2] = {{1.0f, 1.0f}};
    store_tile(dk, scaled, packed_matrix(static_cast<T*>(op.dqkv), op.dims, head, vectors, 1), warp_row, out_column);
    store_tile(dv, unscaled, packed_matrix(static_cast<T*>(op.dqkv), op.dims, head, vectors, 2), warp_row, out_column);
  }
}

}  // namespace spillway::cuda::attention
