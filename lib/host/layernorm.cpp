// Layer normalisation, forward and backward.
//
// Backward, with g = dy * weight and h = (x - mean) * rstd, per row:
//   dx = rstd * (g - sum(g) / channels - h * sum(g * h) / channels)
// dweight = sum over rows of dy * h, dbias = sum of dy: blocks of rows are summed side by side into
// scratch, then the blocks in order.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/clones.h"
#include "host/kernels.h"
#include "host/partition.h"

namespace spillway::host {

namespace {

constexpr std::int64_t kLanes = 16;  // interleaved partial sums of a row
constexpr std::int64_t kMaxBlocks = 32, kMinBlockRows = 16;
constexpr std::int64_t kColumns = 64;  // per piece of the sum over blocks

SPILLWAY_INLINE float sum_of_lanes(float (&lanes)[kLanes]) {
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
    for (std::int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

// Sum of (x - shift)^power over a row, power 1 or 2.
template <int power, class T>
SPILLWAY_INLINE float moment(const T* x, float shift, std::int64_t n) {
  float lanes[kLanes] = {};
  const auto term = [&](std::int64_t i) __attribute__((always_inline)) {
    const float d = to_float(x[i]) - shift;
    return power == 1 ? d : d * d;
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  for (std::int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  return sum_of_lanes(lanes);
}

template <class T>
SPILLWAY_CLONES void forward_rows(const T* __restrict x, const T* __restrict weight, const T* __restrict bias, T* __restrict y,
                                  float* __restrict mean, float* __restrict rstd, std::int64_t rows, std::int64_t channels,
                                  float epsilon) {
  const float count = static_cast<float>(channels);
  for (std::int64_t row = 0; row < rows; ++row, x += channels, y += channels) {
    const float m = moment<1>(x, 0.0f, channels) / count;
    const float r = 1.0f / std::sqrt(moment<2>(x, m, channels) / count + epsilon);
    mean[row] = m;
    rstd[row] = r;
    for (std::int64_t i = 0; i < channels; ++i)
      y[i] = from_float<T>((to_float(x[i]) - m) * r * to_float(weight[i]) + to_float(bias[i]));
  }
}

// One row: adds to dweight and dbias, and returns sum(g) and sum(g * h) over `channels`.
struct RowSums {
  float g, gh;
};

template <class T>
SPILLWAY_INLINE RowSums row_sums(const T* dy, const T* x, const T* weight, float mean, float rstd, float* __restrict dweight,
                                 float* __restrict dbias, std::int64_t channels) {
  float g_lanes[kLanes] = {}, gh_lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= channels; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float d = to_float(dy[i + lane]), h = (to_float(x[i + lane]) - mean) * rstd;
      const float g = d * to_float(weight[i + lane]);
      g_lanes[lane] += g;
      gh_lanes[lane] += g * h;
      dweight[i + lane] += d * h;
      dbias[i + lane] += d;
    }
  for (std::int64_t lane = 0; i < channels; ++i, ++lane) {
    const float d = to_float(dy[i]), h = (to_float(x[i]) - mean) * rstd;
    const float g = d * to_float(weight[i]);
    g_lanes[lane] += g;
    gh_lanes[lane] += g * h;
    dweight[i] += d * h;
    dbias[i] += d;
  }
  return {sum_of_lanes(g_lanes), sum_of_lanes(gh_lanes)};
}

template <class T>
struct BackwardRows {
  const T *dy, *x, *weight, *dresidual;
  const float *mean, *rstd;
  T* dx;
  float *dweight, *dbias;  // of this block alone
};

template <class T>
SPILLWAY_CLONES void backward_rows(const BackwardRows<T>& at, std::int64_t rows, std::int64_t channels) {
  for (std::int64_t i = 0; i < channels; ++i) at.dweight[i] = at.dbias[i] = 0.0f;
  const T* const weight = at.weight;
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* const dy = at.dy + row * channels;
    const T* const x = at.x + row * channels;
    T* const dx = at.dx + row * channels;
    const float mean = at.mean[row], rstd = at.rstd[row];
    const RowSums sums = row_sums(dy, x, weight, mean, rstd, at.dweight, at.dbias, channels);
    const float mean_g = sums.g / static_cast<float>(channels), mean_gh = sums.gh / static_cast<float>(channels);
    const auto gradient = [&](std::int64_t i) __attribute__((always_inline)) {
      const float h = (to_float(x[i]) - mean) * rstd;
      return rstd * (to_float(dy[i]) * to_float(weight[i]) - mean_g - h * mean_gh);
    };
    if (at.dresidual) {
      const T* const dresidual = at.dresidual + row * channels;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < channels; ++i) dx[i] = from_float<T>(gradient(i) + to_float(dresidual[i]));
    } else {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < channels; ++i) dx[i] = from_float<T>(gradient(i));
    }
  }
}

constexpr Cut row_blocks(std::int64_t rows) { return {rows, std::max(kMinBlockRows, divide_up(rows, kMaxBlocks))}; }

}  // namespace

std::int64_t layernorm_backward_scratch_bytes(DType, std::int64_t rows, std::int64_t channels) {
  return row_blocks(rows).count() * 2 * channels * size_of(DType::f32);
}

template <class T>
void layernorm_forward(const LayerNormForward& op) {
  for_each_piece(cut_rows(op.rows, op.channels), [&](std::int64_t first, std::int64_t rows) {
    forward_rows(static_cast<const T*>(op.x) + first * op.channels, static_cast<const T*>(op.weight),
                 static_cast<const T*>(op.bias), static_cast<T*>(op.y) + first * op.channels, op.mean + first,
                 op.rstd + first, rows, op.channels, op.epsilon);
  });
}

template <class T>
void layernorm_backward(const LayerNormBackward& op) {
  const std::int64_t channels = op.channels;
  const Cut blocks = row_blocks(op.rows);
  assert(static_cast<std::int64_t>(op.scratch.size()) >= layernorm_backward_scratch_bytes(DType::f32, op.rows, channels));
  float* const partial = reinterpret_cast<float*>(op.scratch.data());  // (blocks, 2, channels): dweight, dbias
  parallel_for(blocks.count(), [&](std::int64_t block) {
    const std::int64_t row = blocks.begin(block), element = row * channels;
    const BackwardRows<T> at{static_cast<const T*>(op.dy) + element,
                             static_cast<const T*>(op.x) + element,
                             static_cast<const T*>(op.weight),
                             op.dresidual ? static_cast<const T*>(op.dresidual) + element : nullptr,
                             op.mean + row,
                             op.rstd + row,
                             static_cast<T*>(op.dx) + element,
                             partial + 2 * block * channels,
                             partial + (2 * block + 1) * channels};
    backward_rows(at, blocks.length(block), channels);
  });
  for_each_piece(Cut{channels, kColumns}, [&](std::int64_t first, std::int64_t columns) {
    for (const auto& [out, offset] : {std::pair{op.dweight, std::int64_t{0}}, std::pair{op.dbias, channels}}) {
      std::copy_n(partial + offset + first, columns, out + first);
      for (std::int64_t block = 1; block < blocks.count(); ++block)
        for (std::int64_t i = 0; i < columns; ++i) out[first + i] += partial[2 * block * channels + offset + first + i];
    }
  });
}

template void layernorm_forward<float>(const LayerNormForward&);
template void layernorm_forward<bf16>(const LayerNormForward&);
template void layernorm_forward<f16>(const LayerNormForward&);
template void layernorm_backward<float>(const LayerNormBackward&);
template void layernorm_backward<bf16>(const LayerNormBackward&);
template void layernorm_backward<f16>(const LayerNormBackward&);

}  // namespace spillway::host
