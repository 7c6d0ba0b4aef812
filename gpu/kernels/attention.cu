// Causal attention, forward and backward: the choice of a kernel for the head size, and the launches.
//
// Work and what to expect, with P = B * heads * T * T / 2 * head_size multiply-adds (only the lower triangle is computed):
// forward 2 P, backward 7 P (dq: 3, dk and dv: 4; the recomputed scores and dp of the second pass are the price of a fixed
// order without atomics, 5 P being what one pass would take). Memory traffic is qkv and y once or a few times per tile
// of queries out of L2: for T >= 512 the tensor cores bound it. mma.sync reaches at most about two thirds of what sm_90's
// wgmma would; with the products' operands read once per 32 rows (forward) or 16 rows (backward) from shared memory,
// 0.5 to 0.6 of sm_80's dense 16-bit peak forward and 0.4 backward are to be expected, and about 0.35 and 0.25 of sm_90's
// (an estimate, from shared memory's bandwidth and FlashAttention-2's published figures; no card has run it yet).
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "gpu/scratch_sizes.h"
#include "intrinsics/launch.h"
#include "kernels/attention_backward.h"
#include "kernels/attention_forward.h"
#include "kernels/kernels.h"

namespace spillway::cuda {

namespace {

// A block's shared memory on the smallest cards since sm_80.
constexpr std::size_t kMaxSharedBytes = 99 * 1024;

template <class T>
bool takes_vectors(std::int64_t head_size, std::initializer_list<const void*> arrays) {
  bool aligned = head_size % attention::kVector<T> == 0;
  for (const void* array : arrays) aligned = aligned && reinterpret_cast<std::uintptr_t>(array) % 16 == 0;
  return aligned;
}

// Calls f(std::integral_constant) with the columns that kernels work on for this head size; the rest of them are zeros.
template <class F>
void with_columns(std::int64_t head_size, F f) {
  assert(head_size >= 1 && head_size <= kMaxHeadSize);
  if (head_size <= 16) return f(std::integral_constant<int, 16>{});
  if (head_size <= 64) return f(std::integral_constant<int, 64>{});
  if (head_size <= 96) return f(std::integral_constant<int, 96>{});
  if (head_size <= 128) return f(std::integral_constant<int, 128>{});
  return f(std::integral_constant<int, 256>{});
}

template <class Shape>
gpu::LaunchShape launch_shape(const AttentionDims& dims, int column_parts = 1) {
  static_assert(Shape::kSharedBytes <= kMaxSharedBytes);
  const std::int64_t tiles = (dims.time + Shape::kRows - 1) / Shape::kRows;
  return {.grid = dim3(static_cast<unsigned>(dims.batch * dims.heads * tiles), static_cast<unsigned>(column_parts)),
          .block = dim3(Shape::kThreads),
          .shared_bytes = Shape::kSharedBytes};
}

}  // namespace

template <class T>
void attention_forward(cudaStream_t stream, const AttentionForward& op) {
  const bool vectors = takes_vectors<T>(op.dims.head_size, {op.qkv, op.y});
  with_columns(op.dims.head_size, [&](auto columns) {
    constexpr int kColumns = decltype(columns)::value;
    gpu::launch("attention_forward", attention::forward_kernel<T, kColumns>,
                launch_shape<attention::ForwardShape<T, kColumns>>(op.dims), stream, op, vectors);
  });
}

template <class T>
void attention_backward(cudaStream_t stream, const AttentionBackward& op) {
  const bool vectors = takes_vectors<T>(op.dims.head_size, {op.qkv, op.y, op.dy, op.dqkv});
  assert(static_cast<std::int64_t>(op.scratch.size()) >= attention_backward_scratch_bytes(DType::f32, op.dims));
  float* row_products = reinterpret_cast<float*>(op.scratch.data());
  with_columns(op.dims.head_size, [&](auto columns) {
    constexpr int kColumns = decltype(columns)::value;
    using Shape = attention::BackwardShape<T, kColumns>;
    gpu::launch("attention_backward, queries", attention::backward_queries_kernel<T, kColumns>, launch_shape<Shape>(op.dims),
                stream, op, row_products, vectors);
    gpu::launch("attention_backward, keys", attention::backward_keys_kernel<T, kColumns>,
                launch_shape<Shape>(op.dims, kColumns / Shape::kOutColumns), stream, op, row_products, vectors);
  });
}

template void attention_forward<float>(cudaStream_t, const AttentionForward&);
template void attention_forward<__nv_bfloat16>(cudaStream_t, const AttentionForward&);
template void attention_forward<__half>(cudaStream_t, const AttentionForward&);
template void attention_backward<float>(cudaStream_t, const AttentionBackward&);
template void attention_backward<__nv_bfloat16>(cudaStream_t, const AttentionBackward&);
template void attention_backward<__half>(cudaStream_t, const AttentionBackward&);

}  // namespace spillway::cuda
