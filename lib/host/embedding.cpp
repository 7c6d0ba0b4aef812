// Token and position embedding, forward and backward.
#include <algorithm>
#include <cassert>

#include "base/clones.h"
#include "host/kernels.h"
#include "host/partition.h"

namespace spillway::host {

namespace {

constexpr std::int64_t kColumns = 64;  // of the gradient tables, per piece

template <class T>
SPILLWAY_CLONES void add_rows(const T* __restrict a, const T* __restrict b, T* __restrict out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
}

template <class T>
SPILLWAY_CLONES void add_to(float* __restrict sums, const T* __restrict x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] += to_float(x[i]);
}

}  // namespace

template <class T>
void embedding_forward(const EmbeddingForward& op) {
  const T* const token_table = static_cast<const T*>(op.token_table);
  const T* const position_table = static_cast<const T*>(op.position_table);
  T* const out = static_cast<T*>(op.out);
  for_each_piece(cut_rows(op.batch * op.time, op.channels), [&](std::int64_t first, std::int64_t rows) {
    for (std::int64_t row = first; row < first + rows; ++row)
      add_rows(token_table + op.tokens[row] * op.channels, position_table + row % op.time * op.channels,
               out + row * op.channels, op.channels);
  });
}

// A piece is a band of columns of the token table, or a band of rows of the position table: every
// element is summed by one thread, in the order of the batch.
template <class T>
void embedding_backward(const EmbeddingBackward& op) {
  const T* const dout = static_cast<const T*>(op.dout);
  assert(op.positions >= op.time);
  for_each_piece(Cut{op.channels, kColumns}, [&](std::int64_t first, std::int64_t columns) {
    for (std::int64_t row = 0; row < op.batch * op.time; ++row) {
      assert(op.tokens[row] >= 0 && op.tokens[row] < op.vocabulary);
      add_to(op.dtoken_table + op.tokens[row] * op.channels + first, dout + row * op.channels + first, columns);
    }
  });
  for_each_piece(cut_rows(op.positions, op.channels), [&](std::int64_t first, std::int64_t rows) {
    std::fill_n(op.dposition_table + first * op.channels, rows * op.channels, 0.0f);
    for (std::int64_t batch = 0; batch < op.batch; ++batch)
      for (std::int64_t t = first; t < std::min(first + rows, op.time); ++t)
        add_to(op.dposition_table + t * op.channels, dout + (batch * op.time + t) * op.channels, op.channels);
  });
}

template void embedding_forward<float>(const EmbeddingForward&);
template void embedding_forward<bf16>(const EmbeddingForward&);
template void embedding_forward<f16>(const EmbeddingForward&);
template void embedding_backward<float>(const EmbeddingBackward&);
template void embedding_backward<bf16>(const EmbeddingBackward&);
template void embedding_backward<f16>(const EmbeddingBackward&);

}  // namespace spillway::host
