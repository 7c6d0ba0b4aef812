// Token and position embedding, forward and backward.
//
// Forward: a block for each row. 2 bytes an element written in 16-bit storage, and up to 4 read from the tables, of
// which the position's come from the cache: 0.8 of the bandwidth expected.
//
// Backward, token table: a row of it is summed by the block of the row's first token, in the order of the batch as on
// the host, whatever its threads' timing. The block of every other occurrence finds out that it is not the first,
// looking backwards so that a frequent token is quick. The tokens are all in the cache: 64 Ki of them, 8 Ki distinct,
// are 5e8 comparisons, well under a millisecond. The rest reads each gradient once, 2 bytes an element, and adds to the
// f32 rows of the tokens that occur.
//
// Backward, position table: a block for each position, which sums over the batch. 2 bytes an element read, 4 written for
// each position.
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/vectors.h"
#include "intrinsics/warp.h"

namespace spillway::cuda {

namespace {

constexpr int kRowThreads = 256;     // at most
constexpr int kTokensPerThread = 8;  // looked at between two barriers

// Threads for a row of so many vectors.
dim3 row_threads(std::int64_t vectors) {
  return dim3(static_cast<unsigned>(std::min<std::int64_t>(kRowThreads, round_up(vectors, gpu::kWarpSize))));
}

template <class T, int width>
__global__ void __launch_bounds__(kRowThreads)
    embedding_forward_kernel(const std::int32_t* tokens, const T* token_table, const T* position_table, T* out, std::int64_t time,
                             std::int64_t channels) {
  const std::int64_t row = blockIdx.x;
  const T* const token = token_table + tokens[row] * channels;
  const T* const position = position_table + row % time * channels;
  for (std::int64_t c = std::int64_t{threadIdx.x} * width; c < channels; c += std::int64_t{blockDim.x} * width) {
    float sum[width], added[width];
    load(token + c, channels - c, sum);
    load(position + c, channels - c, added);
#pragma unroll
    for (int k = 0; k < width; ++k) sum[k] += added[k];
    store(sum, out + row * channels + c, channels - c);
  }
}

// Whether `condition` holds for any thread of the block. All threads of the block call it.
__device__ bool any_in_block(bool condition) { return gpu::block_max(condition ? 1.0f : 0.0f) > 0.0f; }

__device__ bool is_first(const std::int32_t* tokens, std::int64_t row) {
  const std::int32_t token = tokens[row];
  bool found = false;
  for (std::int64_t end = row; end > 0 && !found; end -= kTokensPerThread * blockDim.x) {
    bool here = false;
#pragma unroll
    for (int k = 0; k < kTokensPerThread; ++k) {
      const std::int64_t at = end - 1 - (std::int64_t{k} * blockDim.x + threadIdx.x);
      if (at >= 0 && tokens[at] == token) here = true;
    }
    found = any_in_block(here);
  }
  return !found;
}

// The next kTokensPerThread * blockDim.x rows from `begin` on: those with this token, ascending and counted from `begin`, in
// `list`; returns how many. Begins with a barrier: until then `list` may be read.
__device__ int list_rows(const std::int32_t* tokens, std::int32_t token, std::int64_t begin, std::int64_t rows, int* list) {
  SPILLWAY_SHARED_ARRAY(int, counts, kRowThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t first = begin + std::int64_t{thread} * kTokensPerThread;
  int count = 0;
#pragma unroll
  for (int k = 0; k < kTokensPerThread; ++k) count += first + k < rows && tokens[first + k] == token;
  if (!any_in_block(count > 0)) return 0;
  counts[thread] = count;
  __syncthreads();
  int total = 0, before = 0;
  for (int other = 0; other < static_cast<int>(blockDim.x); ++other) {
    if (other == thread) before = total;
    total += counts[other];
  }
  for (int k = 0; k < kTokensPerThread; ++k) {
    if (first + k < rows && tokens[first + k] == token) list[before++] = static_cast<int>(first + k - begin);
  }
  __syncthreads();
  return total;
}

// Block (row, band): if the row's token is the first of its kind, a band of channels of the token's gradient.
template <class T, int width>
__global__ void __launch_bounds__(kRowThreads)
    token_gradient_kernel(const std::int32_t* tokens, const T* dout, float* dtoken_table, std::int64_t rows, std::int64_t channels) {
  SPILLWAY_SHARED_ARRAY(int, list, kTokensPerThread * kRowThreads);
  const std::int64_t row = blockIdx.x;
  const std::int64_t c = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * width;
  if (is_first(tokens, row)) {
    float* const out = dtoken_table + tokens[row] * channels + c;
    float sum[width] = {};
    if (c < channels) load(out, channels - c, sum);
    for (std::int64_t begin = row; begin < rows; begin += kTokensPerThread * blockDim.x) {
      const int count = list_rows(tokens, tokens[row], begin, rows, list);
      if (c < channels) {
#pragma unroll 4
        for (int i = 0; i < count; ++i) {
          float added[width];
          load(dout + (begin + list[i]) * channels + c, channels - c, added);
#pragma unroll
          for (int k = 0; k < width; ++k) sum[k] += added[k];
        }
      }
    }
    if (c < channels) store(sum, out, channels - c);
  }
}

template <class T, int width>
__global__ void __launch_bounds__(kRowThreads)
    position_gradient_kernel(const T* dout, float* dposition_table, std::int64_t batch, std::int64_t time, std::int64_t channels) {
  const std::int64_t position = blockIdx.x;
  for (std::int64_t c = std::int64_t{threadIdx.x} * width; c < channels; c += std::int64_t{blockDim.x} * width) {
    float sum[width] = {};
    if (position < time) {
#pragma unroll 4
      for (std::int64_t b = 0; b < batch; ++b) {
        float added[width];
        load(dout + (b * time + position) * channels + c, channels - c, added);
#pragma unroll
        for (int k = 0; k < width; ++k) sum[k] += added[k];
      }
    }
    store(sum, dposition_table + position * channels + c, channels - c);
  }
}

}  // namespace

template <class T>
void embedding_forward(cudaStream_t stream, const EmbeddingForward& op) {
  const std::int64_t rows = op.batch * op.time;
  if (rows == 0) return;
  const T* const token_table = static_cast<const T*>(op.token_table);
  const T* const position_table = static_cast<const T*>(op.position_table);
  T* const out = static_cast<T*>(op.out);
  constexpr int kWidth = kVectorWidth<T>;
  const bool aligned =
      op.channels % kWidth == 0 && is_aligned<kWidth>(token_table) && is_aligned<kWidth>(position_table) && is_aligned<kWidth>(out);
  with_vectors_if<kWidth>(aligned, [&](auto width) {
    const LaunchShape shape{dim3(static_cast<unsigned>(rows)), row_threads(divide_up(op.channels, width))};
    launch("embedding_forward", embedding_forward_kernel<T, width>, shape, stream, op.tokens, token_table, position_table, out, op.time,
           op.channels);
  });
}

template <class T>
void embedding_backward(cudaStream_t stream, const EmbeddingBackward& op) {
  const std::int64_t rows = op.batch * op.time;
  const T* const dout = static_cast<const T*>(op.dout);
  constexpr int kWidth = kVectorWidth<T>;
  const bool aligned =
      op.channels % kWidth == 0 && is_aligned<kWidth>(dout) && is_aligned<kWidth>(op.dtoken_table) && is_aligned<kWidth>(op.dposition_table);
  with_vectors_if<kWidth>(aligned, [&](auto width) {
    const std::int64_t vectors = divide_up(op.channels, width);
    const dim3 threads = row_threads(vectors);
    if (rows > 0) {
      const LaunchShape shape{dim3(static_cast<unsigned>(rows), static_cast<unsigned>(divide_up(vectors, threads.x))), threads};
      launch("embedding_backward (tokens)", token_gradient_kernel<T, width>, shape, stream, op.tokens, dout, op.dtoken_table, rows,
             op.channels);
    }
    if (op.positions > 0) {
      launch("embedding_backward (positions)", position_gradient_kernel<T, width>,
             LaunchShape{dim3(static_cast<unsigned>(op.positions)), threads}, stream, dout, op.dposition_table, op.batch, op.time,
             op.channels);
    }
  });
}

template void embedding_forward<float>(cudaStream_t, const EmbeddingForward&);
template void embedding_forward<__nv_bfloat16>(cudaStream_t, const EmbeddingForward&);
template void embedding_forward<__half>(cudaStream_t, const EmbeddingForward&);
template void embedding_backward<float>(cudaStream_t, const EmbeddingBackward&);
template void embedding_backward<__nv_bfloat16>(cudaStream_t, const EmbeddingBackward&);
template void embedding_backward<__half>(cudaStream_t, const EmbeddingBackward&);

}  // namespace spillway::cuda
