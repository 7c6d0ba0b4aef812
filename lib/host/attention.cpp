// Causal attention. A head is processed tile of rows by tile of rows, each against the keys up to its
// last row, in f32; backward recomputes the probabilities from the forward's log-sum-exp (Dao et al. 2022,
// arXiv:2205.14135, section 3.1). Heads run in parallel; inside one, everything is in a fixed order.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/parallel.h"
#include "host/gemm.h"
#include "host/kernels.h"
#include "host/math.h"
#include "host/row_reduce.h"

namespace spillway::host {

namespace {

constexpr std::int64_t kTileRows = 64;

// Heads in flight at once, each with its own slot of the scratch. A constant, so that the scratch is a
// function of the shape alone; more than this many cores would need a larger one.
constexpr std::int64_t kMaxSlots = 32;

struct Sizes {
  explicit Sizes(const AttentionDims& dims)
      : heads(dims.batch * dims.heads),
        slots(std::min(heads, kMaxSlots)),
        tile(std::min(kTileRows, dims.time)),
        matrix(padded(dims.time * dims.head_size)),
        scores(padded(tile * dims.time)) {}

  // Slots start on their own cache lines.
  static constexpr std::int64_t padded(std::int64_t floats) { return (floats + 15) / 16 * 16; }

  std::int64_t forward_slot() const { return 4 * matrix + scores; }
  std::int64_t backward_slot() const { return 7 * matrix + 2 * scores; }

  std::int64_t heads;   // of all sequences
  std::int64_t slots;
  std::int64_t tile;    // rows of a tile
  std::int64_t matrix;  // floats of one (T, head_size)
  std::int64_t scores;  // floats of one (tile, T)
};

// Rows of head_size elements, `ld` apart, as f32 without gaps; and back.
template <class T>
SPILLWAY_INLINE void widen_rows(const T* in, std::int64_t ld, std::int64_t rows, std::int64_t n, float* out) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < n; ++i) out[row * n + i] = to_float(in[row * ld + i]);
  }
}

template <class T>
SPILLWAY_INLINE void round_rows(const float* in, std::int64_t rows, std::int64_t n, T* out, std::int64_t ld) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < n; ++i) out[row * ld + i] = from_float<T>(in[row * n + i]);
  }
}

// The clones, which have to be plain functions (base/clones.h).
#define SPILLWAY_ROWS(T)                                                                              \
  SPILLWAY_CLONES void load_rows(const T* in, std::int64_t ld, std::int64_t rows, std::int64_t n,     \
                                 float* out) {                                                        \
    widen_rows(in, ld, rows, n, out);                                                                 \
  }                                                                                                   \
  SPILLWAY_CLONES void store_rows(const float* in, std::int64_t rows, std::int64_t n, T* out,         \
                                  std::int64_t ld) {                                                  \
    round_rows(in, rows, n, out, ld);                                                                 \
  }
SPILLWAY_ROWS(float)
SPILLWAY_ROWS(bf16)
SPILLWAY_ROWS(f16)
#undef SPILLWAY_ROWS

// Scores of `visible` keys become probabilities, those of the other keys 0. Returns the log-sum-exp.
SPILLWAY_CLONES float softmax_row(float* s, std::int64_t visible, std::int64_t keys) {
  const float shift = row_max(s, visible);
  const float sum = row_sum(visible, [=](std::int64_t i) __attribute__((always_inline)) { return s[i] = fast_exp(s[i] - shift); });
  const float factor = 1.0f / sum;
  for (std::int64_t i = 0; i < visible; ++i) s[i] *= factor;
  for (std::int64_t i = visible; i < keys; ++i) s[i] = 0.0f;
  return shift + std::log(sum);
}

// Scores become probabilities, and dp, the gradient of the probabilities, that of the unscaled scores. The
// row's sum of p * dp is formed from the f32 values, which is closer than the usual sum of y * dy once y has
// been rounded to 16 bits.
SPILLWAY_CLONES void softmax_backward_row(float* p, float* dp, std::int64_t visible, std::int64_t keys,
                                          float log_sum_exp, float scale) {
  const float dot = row_sum(visible, [=](std::int64_t i) __attribute__((always_inline)) {
    p[i] = fast_exp(p[i] - log_sum_exp);
    return p[i] * dp[i];
  });
  for (std::int64_t i = 0; i < visible; ++i) dp[i] = p[i] * (dp[i] - dot) * scale;
  for (std::int64_t i = visible; i < keys; ++i) p[i] = dp[i] = 0.0f;
}

// One head of one sequence.
template <class T>
struct Head {
  Head(const AttentionDims& dims, std::int64_t index)
      : time(dims.time),
        size(dims.head_size),
        width(dims.heads * dims.head_size),
        offset(index / dims.heads * dims.time * width + index % dims.heads * size),
        qkv_offset(index / dims.heads * dims.time * 3 * width + index % dims.heads * size),
        scale(1.0f / std::sqrt(static_cast<float>(size))) {}

  // Matrix `which` (0: Q, 1: K, 2: V) of the packed (B, T, 3, heads, head_size) array, as (T, head_size).
  void load_packed(const void* qkv, int which, float* out) const {
    load_rows(static_cast<const T*>(qkv) + qkv_offset + which * width, 3 * width, time, size, out);
  }
  void store_packed(const float* in, int which, void* qkv) const {
    store_rows(in, time, size, static_cast<T*>(qkv) + qkv_offset + which * width, 3 * width);
  }
  void load(const void* x, float* out) const {
    load_rows(static_cast<const T*>(x) + offset, width, time, size, out);
  }
  void store(const float* in, void* x) const {
    store_rows(in, time, size, static_cast<T*>(x) + offset, width);
  }

  std::int64_t time, size, width, offset, qkv_offset;
  float scale;
};

// Calls f(head index, its slot of the scratch) for every head.
template <class F>
void for_each_head(const Sizes& sizes, std::int64_t slot_floats, std::span<std::byte> scratch, F f) {
  assert(static_cast<std::int64_t>(scratch.size()) >= sizes.slots * slot_floats * size_of(DType::f32));
  parallel_for(sizes.slots, [&](std::int64_t slot) {
    float* floats = reinterpret_cast<float*>(scratch.data()) + slot * slot_floats;
    for (std::int64_t head = slot; head < sizes.heads; head += sizes.slots) f(head, floats);
  });
}

template <class T>
void head_forward(const AttentionForward& op, const Sizes& sizes, std::int64_t index, float* slot) {
  const Head<T> head(op.dims, index);
  const std::int64_t d = head.size;
  float* q = slot;
  float* k = q + sizes.matrix;
  float* v = k + sizes.matrix;
  float* y = v + sizes.matrix;
  float* scores = y + sizes.matrix;
  head.load_packed(op.qkv, 0, q);
  head.load_packed(op.qkv, 1, k);
  head.load_packed(op.qkv, 2, v);
  for (std::int64_t begin = 0; begin < head.time; begin += sizes.tile) {
    const std::int64_t rows = std::min(sizes.tile, head.time - begin), keys = begin + rows;
    sgemm(Transposed::no, Transposed::yes, rows, keys, d, head.scale, q + begin * d, d, k, d, 0.0f, scores, keys);
    for (std::int64_t row = 0; row < rows; ++row) {
      op.log_sum_exp[index * head.time + begin + row] = softmax_row(scores + row * keys, begin + row + 1, keys);
    }
    sgemm(Transposed::no, Transposed::no, rows, d, keys, 1.0f, scores, keys, v, d, 0.0f, y + begin * d, d);
  }
  head.store(y, op.y);
}

template <class T>
void head_backward(const AttentionBackward& op, const Sizes& sizes, std::int64_t index, float* slot) {
  const Head<T> head(op.dims, index);
  const std::int64_t d = head.size;
  float* q = slot;
  float* k = q + sizes.matrix;
  float* v = k + sizes.matrix;
  float* dy = v + sizes.matrix;
  float* dq = dy + sizes.matrix;
  float* dk = dq + sizes.matrix;
  float* dv = dk + sizes.matrix;
  float* p = dv + sizes.matrix;
  float* dp = p + sizes.scores;
  head.load_packed(op.qkv, 0, q);
  head.load_packed(op.qkv, 1, k);
  head.load_packed(op.qkv, 2, v);
  head.load(op.dy, dy);
  std::fill(dk, dk + head.time * d, 0.0f);
  std::fill(dv, dv + head.time * d, 0.0f);
  for (std::int64_t begin = 0; begin < head.time; begin += sizes.tile) {
    const std::int64_t rows = std::min(sizes.tile, head.time - begin), keys = begin + rows;
    const float* q_tile = q + begin * d;
    const float* dy_tile = dy + begin * d;
    sgemm(Transposed::no, Transposed::yes, rows, keys, d, head.scale, q_tile, d, k, d, 0.0f, p, keys);
    sgemm(Transposed::no, Transposed::yes, rows, keys, d, 1.0f, dy_tile, d, v, d, 0.0f, dp, keys);
    for (std::int64_t row = 0; row < rows; ++row) {
      softmax_backward_row(p + row * keys, dp + row * keys, begin + row + 1, keys,
                           op.log_sum_exp[index * head.time + begin + row], head.scale);
    }
    sgemm(Transposed::no, Transposed::no, rows, d, keys, 1.0f, dp, keys, k, d, 0.0f, dq + begin * d, d);
    sgemm(Transposed::yes, Transposed::no, keys, d, rows, 1.0f, dp, keys, q_tile, d, 1.0f, dk, d);
    sgemm(Transposed::yes, Transposed::no, keys, d, rows, 1.0f, p, keys, dy_tile, d, 1.0f, dv, d);
  }
  head.store_packed(dq, 0, op.dqkv);
  head.store_packed(dk, 1, op.dqkv);
  head.store_packed(dv, 2, op.dqkv);
}

}  // namespace

std::int64_t attention_forward_scratch_bytes(DType, const AttentionDims& dims) {
  const Sizes sizes(dims);
  return sizes.slots * sizes.forward_slot() * size_of(DType::f32);
}

std::int64_t attention_backward_scratch_bytes(DType, const AttentionDims& dims) {
  const Sizes sizes(dims);
  return sizes.slots * sizes.backward_slot() * size_of(DType::f32);
}

template <class T>
void attention_forward(const AttentionForward& op) {
  const Sizes sizes(op.dims);
  for_each_head(sizes, sizes.forward_slot(), op.scratch,
                [&](std::int64_t head, float* slot) { head_forward<T>(op, sizes, head, slot); });
}

template <class T>
void attention_backward(const AttentionBackward& op) {
  const Sizes sizes(op.dims);
  for_each_head(sizes, sizes.backward_slot(), op.scratch,
                [&](std::int64_t head, float* slot) { head_backward<T>(op, sizes, head, slot); });
}

template void attention_forward<float>(const AttentionForward&);
template void attention_forward<bf16>(const AttentionForward&);
template void attention_forward<f16>(const AttentionForward&);
template void attention_backward<float>(const AttentionBackward&);
template void attention_backward<bf16>(const AttentionBackward&);
template void attention_backward<f16>(const AttentionBackward&);

}  // namespace spillway::host
