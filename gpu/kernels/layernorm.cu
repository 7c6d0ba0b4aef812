// Layer normalisation, forward and backward.
//
// A block has a row, which its threads hold in registers: mean, then variance around it, then the result, from one
// reading. Rows too long for that are read again, from the cache. Forward moves 4 bytes an element in 16-bit storage,
// 0.85 of the bandwidth expected: barriers leave gaps that other blocks of the multiprocessor fill.
//
// Backward, with g = dy * weight and h = (x - mean) * rstd, per row:
//   dx = rstd * (g - sum(g) / channels - h * sum(g * h) / channels)
// dweight = sum over rows of dy * h, dbias = sum of dy: a block goes through consecutive rows, keeps its columns' sums in
// registers and leaves them in scratch; a second kernel adds the blocks' in a fixed tree. 8 bytes an element with
// dresidual, 6 without, and 16 bytes of scratch for each column of a block (layernorm_partials() keeps that small). 0.75 of
// the bandwidth expected.
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/vectors.h"
#include "gpu/scratch_sizes.h"
#include "intrinsics/warp.h"

namespace spillway::cuda {

namespace {

constexpr int kRowThreads = 512;  // at most

// Vectors of a row that each thread holds; 0: too many to be held.
struct RowShape {
  int held;
  unsigned threads;
};

RowShape row_shape(std::int64_t vectors) {
  const auto whole_warps = [](std::int64_t threads) { return static_cast<unsigned>(round_up(threads, gpu::kWarpSize)); };
  if (vectors <= kRowThreads / 2) return {1, whole_warps(vectors)};
  if (vectors <= 2 * kRowThreads) return {2, whole_warps(divide_up(vectors, 2))};
  return {0, kRowThreads};
}

// f(std::integral_constant<int, h>) for the number of vectors held.
template <class F>
void with_held(int held, F f) {
  switch (held) {
    case 1: return f(std::integral_constant<int, 1>{});
    case 2: return f(std::integral_constant<int, 2>{});
    default: return f(std::integral_constant<int, 0>{});
  }
}

// A thread's vectors of a row: the threads of a block take turns. f(k, c): the thread's k-th vector starts at channel c.
template <int width, int held, class F>
__device__ void for_each_column(std::int64_t channels, F f) {
  if constexpr (held > 0) {
#pragma unroll
    for (int k = 0; k < held; ++k) {
      const std::int64_t c = (std::int64_t{k} * blockDim.x + threadIdx.x) * width;
      if (c < channels) f(k, c);
    }
  } else {
    for (std::int64_t c = std::int64_t{threadIdx.x} * width; c < channels; c += std::int64_t{blockDim.x} * width) f(0, c);
  }
}

// A thread's part of a row, as stored, in registers or, if none are held, in memory. A row is a whole number of vectors:
// kernels with wider ones than one element are for such rows only.
template <class T, int width, int held>
class RowPart {
 public:
  __device__ RowPart(const T* row, std::int64_t channels) : row_(row) {
    if constexpr (held > 0) for_each_column<width, held>(channels, [&](int k, std::int64_t c) { vectors_[k] = load_vector<width>(row + c); });
  }

  // The k-th vector, which starts at channel c.
  __device__ void get(int k, std::int64_t c, float (&values)[width]) const {
    if constexpr (held > 0) {
      widen(vectors_[k], values);
    } else {
      widen(load_vector<width>(row_ + c), values);
    }
  }

 private:
  const T* row_;
  Vector<T, width> vectors_[held > 0 ? held : 1] = {};
};

template <class T>
struct ForwardArrays {
  const T *x, *weight, *bias;
  T* y;
  float *mean, *rstd;
  std::int64_t channels;
  float epsilon;
};

template <class T, int width, int held>
__global__ void __launch_bounds__(kRowThreads) layernorm_forward_kernel(ForwardArrays<T> at) {
  const std::int64_t row = blockIdx.x, channels = at.channels;
  const float count = static_cast<float>(channels);
  const RowPart<T, width, held> x(at.x + row * channels, channels);
  float values[width], sum = 0.0f, squares = 0.0f;
  for_each_column<width, held>(channels, [&](int k, std::int64_t c) {
    x.get(k, c, values);
#pragma unroll
    for (int i = 0; i < width; ++i) sum += values[i];
  });
  const float mean = gpu::div_rn(gpu::block_sum(sum), count);
  for_each_column<width, held>(channels, [&](int k, std::int64_t c) {
    x.get(k, c, values);
#pragma unroll
    for (int i = 0; i < width; ++i) squares += (values[i] - mean) * (values[i] - mean);
  });
  const float rstd = gpu::div_rn(1.0f, gpu::sqrt_rn(gpu::div_rn(gpu::block_sum(squares), count) + at.epsilon));
  if (threadIdx.x == 0) {
    at.mean[row] = mean;
    at.rstd[row] = rstd;
  }
  for_each_column<width, held>(channels, [&](int k, std::int64_t c) {
    float weight[width], bias[width];
    x.get(k, c, values);
    widen(load_vector<width>(at.weight + c), weight);
    widen(load_vector<width>(at.bias + c), bias);
#pragma unroll
    for (int i = 0; i < width; ++i) values[i] = (values[i] - mean) * rstd * weight[i] + bias[i];
    store(values, at.y + row * channels + c, channels - c);
  });
}

template <class T>
struct BackwardArrays {
  const T *dy, *x, *weight, *dresidual;
  const float *mean, *rstd;
  T* dx;
  float* partial;  // (blocks, 2, channels): dweight, dbias of each block's rows
  std::int64_t rows, channels, rows_per_block;
};

struct RowSums {
  float g, gh;
};

// Both sums over the block, each as block_sum() has it.
__device__ RowSums sum_over_block(RowSums sums) {
  SPILLWAY_SHARED_ARRAY(RowSums, of_warps, kRowThreads / gpu::kWarpSize);
  sums = {gpu::warp_sum(sums.g), gpu::warp_sum(sums.gh)};
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = sums;
  __syncthreads();
  sums = of_warps[0];
  for (int warp = 1; warp < gpu::threads_in_block() / gpu::kWarpSize; ++warp) {
    sums.g += of_warps[warp].g;
    sums.gh += of_warps[warp].gh;
  }
  __syncthreads();  // the next row writes
  return sums;
}

// A thread's columns of dweight and dbias over the rows of its block: in registers or, if none are held, in scratch.
template <int width, int held>
class ColumnSums {
 public:
  __device__ ColumnSums(float* dweight, float* dbias, std::int64_t channels) : dweight_(dweight), dbias_(dbias), channels_(channels) {
    if constexpr (held == 0) write();
  }

  __device__ void add(int k, std::int64_t c, const float (&dy)[width], const float (&h)[width]) {
    if constexpr (held == 0) {
      load(dweight_ + c, channels_ - c, weight_[k]);
      load(dbias_ + c, channels_ - c, bias_[k]);
    }
#pragma unroll
    for (int i = 0; i < width; ++i) {
      weight_[k][i] += dy[i] * h[i];
      bias_[k][i] += dy[i];
    }
    if constexpr (held == 0) {
      store(weight_[k], dweight_ + c, channels_ - c);
      store(bias_[k], dbias_ + c, channels_ - c);
    }
  }

  __device__ void write() {
    for_each_column<width, held>(channels_, [&](int k, std::int64_t c) {
      store(weight_[k], dweight_ + c, channels_ - c);
      store(bias_[k], dbias_ + c, channels_ - c);
    });
  }

 private:
  float *dweight_, *dbias_;
  std::int64_t channels_;
  float weight_[held > 0 ? held : 1][width] = {}, bias_[held > 0 ? held : 1][width] = {};
};

// No pointer is __restrict__: dx may be dy or dresidual, of which a thread reads only what it writes afterwards.
template <class T, int width, int held>
__global__ void __launch_bounds__(kRowThreads) layernorm_backward_kernel(BackwardArrays<T> at) {
  const std::int64_t channels = at.channels, first = blockIdx.x * at.rows_per_block;
  const std::int64_t end = first + at.rows_per_block < at.rows ? first + at.rows_per_block : at.rows;
  const float count = static_cast<float>(channels);
  float* const partial = at.partial + std::int64_t{blockIdx.x} * 2 * channels;
  ColumnSums<width, held> columns(partial, partial + channels, channels);
  const RowPart<T, width, held> weight(at.weight, channels);
  for (std::int64_t row = first; row < end; ++row) {
    const float mean = at.mean[row], rstd = at.rstd[row];
    const RowPart<T, width, held> dy(at.dy + row * channels, channels), x(at.x + row * channels, channels);
    float d[width], g[width], h[width];
    const auto get = [&](int k, std::int64_t c) {
      dy.get(k, c, d);
      x.get(k, c, h);
      weight.get(k, c, g);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        h[i] = (h[i] - mean) * rstd;
        g[i] *= d[i];
      }
    };
    RowSums sums{0.0f, 0.0f};
    for_each_column<width, held>(channels, [&](int k, std::int64_t c) {
      get(k, c);
      columns.add(k, c, d, h);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        sums.g += g[i];
        sums.gh += g[i] * h[i];
      }
    });
    sums = sum_over_block(sums);
    const float mean_g = gpu::div_rn(sums.g, count), mean_gh = gpu::div_rn(sums.gh, count);
    for_each_column<width, held>(channels, [&](int k, std::int64_t c) {
      float residual[width] = {};
      if (at.dresidual != nullptr) widen(load_vector<width>(at.dresidual + row * channels + c), residual);
      get(k, c);
#pragma unroll
      for (int i = 0; i < width; ++i) d[i] = rstd * (g[i] - mean_g - h[i] * mean_gh) + residual[i];
      store(d, at.dx + row * channels + c, channels - c);
    });
  }
  if constexpr (held > 0) columns.write();
}

constexpr int kSumColumns = 32, kSumLanes = 16;

// Block (columns, which): a band of dweight or dbias. Each of kSumLanes threads of a column adds every kSumLanes-th
// partial, then a tree over them.
__global__ void __launch_bounds__(kSumColumns* kSumLanes)
    sum_partials_kernel(const float* partial, std::int64_t partials, std::int64_t channels, float* dweight, float* dbias) {
  SPILLWAY_SHARED_ARRAY(float, sums, kSumColumns* kSumLanes);
  const int column = static_cast<int>(threadIdx.x) % kSumColumns, lane = static_cast<int>(threadIdx.x) / kSumColumns;
  const std::int64_t c = std::int64_t{blockIdx.x} * kSumColumns + column;
  float sum = 0.0f;
  if (c < channels) {
#pragma unroll 4
    for (std::int64_t i = lane; i < partials; i += kSumLanes) sum += partial[(2 * i + blockIdx.y) * channels + c];
  }
  sums[threadIdx.x] = sum;
  for (int apart = kSumLanes / 2; apart > 0; apart /= 2) {
    __syncthreads();
    if (lane < apart) sums[threadIdx.x] += sums[threadIdx.x + static_cast<unsigned>(apart * kSumColumns)];
  }
  if (lane == 0 && c < channels) (blockIdx.y == 0 ? dweight : dbias)[c] = sums[column];
}

}  // namespace

template <class T>
void layernorm_forward(cudaStream_t stream, const LayerNormForward& op) {
  if (op.rows == 0) return;
  const ForwardArrays<T> at{static_cast<const T*>(op.x), static_cast<const T*>(op.weight), static_cast<const T*>(op.bias),
                            static_cast<T*>(op.y),       op.mean,                          op.rstd,
                            op.channels,                 op.epsilon};
  constexpr int kWidth = kVectorWidth<T>;
  const bool aligned = op.channels % kWidth == 0 && is_aligned<kWidth>(at.x) && is_aligned<kWidth>(at.weight) &&
                       is_aligned<kWidth>(at.bias) && is_aligned<kWidth>(at.y);
  with_vectors_if<kWidth>(aligned, [&](auto width) {
    const RowShape shape = row_shape(divide_up(op.channels, width));
    with_held(shape.held, [&](auto held) {
      launch("layernorm_forward", layernorm_forward_kernel<T, width, held>,
             LaunchShape{dim3(static_cast<unsigned>(op.rows)), dim3(shape.threads)}, stream, at);
    });
  });
}

template <class T>
void layernorm_backward(cudaStream_t stream, const LayerNormBackward& op) {
  const std::int64_t channels = op.channels, partials = layernorm_partials(op.rows, channels);
  float* const partial = reinterpret_cast<float*>(op.scratch.data());
  const BackwardArrays<T> at{static_cast<const T*>(op.dy),
                             static_cast<const T*>(op.x),
                             static_cast<const T*>(op.weight),
                             static_cast<const T*>(op.dresidual),
                             op.mean,
                             op.rstd,
                             static_cast<T*>(op.dx),
                             partial,
                             op.rows,
                             channels,
                             divide_up(op.rows, partials)};
  constexpr int kWidth = kVectorWidth<T>;
  const bool aligned = channels % kWidth == 0 && is_aligned<kWidth>(at.dy) && is_aligned<kWidth>(at.x) && is_aligned<kWidth>(at.weight) &&
                       is_aligned<kWidth>(at.dresidual) && is_aligned<kWidth>(at.dx) && is_aligned<kWidth>(partial);
  with_vectors_if<kWidth>(aligned, [&](auto width) {
    const RowShape shape = row_shape(divide_up(channels, width));
    with_held(shape.held, [&](auto held) {
      launch("layernorm_backward", layernorm_backward_kernel<T, width, held>,
             LaunchShape{dim3(static_cast<unsigned>(partials)), dim3(shape.threads)}, stream, at);
    });
  });
  launch("layernorm_backward (sum)", sum_partials_kernel,
         LaunchShape{dim3(static_cast<unsigned>(divide_up(channels, kSumColumns)), 2), dim3(kSumColumns * kSumLanes)}, stream, partial,
         partials, channels, op.dweight, op.dbias);
}

template void layernorm_forward<float>(cudaStream_t, const LayerNormForward&);
template void layernorm_forward<__nv_bfloat16>(cudaStream_t, const LayerNormForward&);
template void layernorm_forward<__half>(cudaStream_t, const LayerNormForward&);
template void layernorm_backward<float>(cudaStream_t, const LayerNormBackward&);
template void layernorm_backward<__nv_bfloat16>(cudaStream_t, const LayerNormBackward&);
template void layernorm_backward<__half>(cudaStream_t, const LayerNormBackward&);

}  // namespace spillway::cuda
