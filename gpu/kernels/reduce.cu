// Gradients between ranks: rounded to the wire dtype on their way out, added up in f32 on their way in, with the bits of
// lib/host/reduce.cpp.
//
// Rounding moves 6 bytes an element to a 16-bit dtype; a sum of r pieces 2 r + 4, or 2 r + 8 where it joins what is
// there. 0.9 of the bandwidth expected.
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/vectors.h"

namespace spillway::cuda {

namespace {

constexpr int kWidth = 4;  // 16 bytes of f32, 8 of a 16-bit dtype

template <class T, int width>
__global__ void __launch_bounds__(kElementThreads) round_kernel(const float* from, T* to, std::int64_t n) {
  for_each_vector<width>(n, [&](std::int64_t i, std::int64_t count) {
    float values[width];
    load(from + i, count, values);
    store(values, to + i, count);
  });
}

// The sum is complete before it joins what is there: it does not depend on how often it is taken.
template <class T, int width>
__global__ void __launch_bounds__(kElementThreads)
    sum_pieces_kernel(const T* pieces, std::int64_t num_pieces, std::int64_t n, float* out, bool add_to_out) {
  for_each_vector<width>(n, [&](std::int64_t i, std::int64_t count) {
    float sum[width];
    load(pieces + i, count, sum);
    for (std::int64_t piece = 1; piece < num_pieces; ++piece) {
      float added[width];
      load(pieces + piece * n + i, count, added);
#pragma unroll
      for (int k = 0; k < width; ++k) sum[k] = gpu::add_rn(sum[k], added[k]);
    }
    if (add_to_out) {
      float before[width];
      load(out + i, count, before);
#pragma unroll
      for (int k = 0; k < width; ++k) sum[k] = gpu::add_rn(before[k], sum[k]);
    }
    store(sum, out + i, count);
  });
}

}  // namespace

void round(cudaStream_t stream, const float* from, void* to, DType dtype, std::int64_t n) {
  if (n == 0) return;
  with_storage_type(dtype, [&](auto storage) {
    using T = typename decltype(storage)::type;
    T* const rounded = static_cast<T*>(to);
    with_vectors_if<kWidth>(is_aligned<kWidth>(from) && is_aligned<kWidth>(rounded), [&](auto width) {
      launch("round", round_kernel<T, width>, element_shape(n, width), stream, from, rounded, n);
    });
  });
}

void sum_pieces(cudaStream_t stream, const SumPieces& op) {
  if (op.n == 0) return;
  with_storage_type(op.dtype, [&](auto storage) {
    using T = typename decltype(storage)::type;
    const T* const pieces = static_cast<const T*>(op.pieces);
    const bool every_piece_aligned = is_aligned<kWidth>(pieces) && (op.num_pieces == 1 || op.n % kWidth == 0);
    with_vectors_if<kWidth>(every_piece_aligned && is_aligned<kWidth>(op.out), [&](auto width) {
      launch("sum_pieces", sum_pieces_kernel<T, width>, element_shape(op.n, width), stream, pieces, op.num_pieces, op.n, op.out,
             op.add_to_out);
    });
  });
}

}  // namespace spillway::cuda
