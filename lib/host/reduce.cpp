// Gradients between ranks: rounded to the wire dtype on their way out, added up in f32 on their way in.
#include <algorithm>

#include "base/clones.h"
#include "host/dtype_of.h"
#include "host/kernels.h"
#include "host/partition.h"

namespace spillway::host {

namespace {

template <class T>
SPILLWAY_CLONES void round_some(const float* __restrict from, T* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from_float<T>(from[i]);
}

template <class T>
SPILLWAY_CLONES void widen(const T* __restrict from, float* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
}

template <class T>
SPILLWAY_CLONES void add_widened(const T* __restrict from, float* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += to_float(from[i]);
}

SPILLWAY_CLONES void add(const float* __restrict from, float* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

template <class T>
void round_all(const float* from, T* to, std::int64_t n) {
  for_each_piece(Cut{n, kElementPiece}, [&](std::int64_t first, std::int64_t count) { round_some(from + first, to + first, count); });
}

// The sum is complete before it joins what is there: it does not depend on how often it is taken.
template <class T>
void sum_all(const SumPieces& op) {
  constexpr std::int64_t kBlock = 1024;
  const T* pieces = static_cast<const T*>(op.pieces);
  for_each_piece(Cut{op.n, kElementPiece}, [&](std::int64_t first, std::int64_t count) {
    alignas(64) float sum[kBlock];
    for (std::int64_t begin = first; begin < first + count; begin += kBlock) {
      const std::int64_t n = std::min(kBlock, first + count - begin);
      float* target = op.add_to_out ? sum : op.out + begin;
      widen(pieces + begin, target, n);
      for (std::int64_t piece = 1; piece < op.num_pieces; ++piece) add_widened(pieces + piece * op.n + begin, target, n);
      if (op.add_to_out) add(sum, op.out + begin, n);
    }
  });
}

}  // namespace

void round(const float* from, void* to, DType dtype, std::int64_t n) {
  switch (dtype) {
    case DType::f32: return round_all(from, static_cast<float*>(to), n);
    case DType::bf16: return round_all(from, static_cast<bf16*>(to), n);
    case DType::f16: return round_all(from, static_cast<f16*>(to), n);
  }
}

void sum_pieces(const SumPieces& op) {
  switch (op.dtype) {
    case DType::f32: return sum_all<float>(op);
    case DType::bf16: return sum_all<bf16>(op);
    case DType::f16: return sum_all<f16>(op);
  }
}

}  // namespace spillway::host
