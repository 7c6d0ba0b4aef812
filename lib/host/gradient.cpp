// Gradient bookkeeping: accumulation over micro-batches, and rounding to the wire dtype with the square
// sums of the global norm.
//
// The square sum of a piece of kNormPiece elements is defined exactly, so that a device of another
// kind can give the same bits. With v[i] the i-th rounded value of the piece, i from 0:
//   1. lane j (0 <= j < 32) starts at 0 and adds (double)v[i] * (double)v[i] for i = j, j + 32, j + 64, ...
//      in that order (the product is exact in f64, so a fused multiply-add changes nothing);
//   2. for width = 16, 8, 4, 2, 1: lane j (0 <= j < width) adds lane j + width;
//   3. the sum is lane 0.
#include <algorithm>
#include <cassert>

#include "base/clones.h"
#include "host/dtype_of.h"
#include "host/kernels.h"
#include "host/partition.h"

namespace spillway {

namespace {

using host::Cut;

constexpr std::int64_t kLanes = 32;
constexpr std::int64_t kNormPiecesPerTask = 4;

SPILLWAY_CLONES void add(float* __restrict accumulator, const float* __restrict gradient, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) accumulator[i] += gradient[i];
}

SPILLWAY_CLONES double square_sum(const float* values, std::int64_t n) {
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const double v = values[i + lane];
      lanes[lane] += v * v;
    }
  for (std::int64_t lane = 0; i < n; ++i, ++lane) {
    const double v = values[i];
    lanes[lane] += v * v;
  }
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
    for (std::int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

// `values` keeps the rounded piece in cache for square_sum().
template <class Wire, class Out>
SPILLWAY_CLONES void round_piece(const float* accumulated, float* __restrict values, Out* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) values[i] = round_to<Wire>(accumulated[i]);
  for (std::int64_t i = 0; i < n; ++i) out[i] = from_float<Out>(values[i]);
}

template <class Wire, class Out>
void finalize(const FinalizeGradient& op) {
  host::for_each_piece(Cut{norm_pieces(op.n), kNormPiecesPerTask}, [&](std::int64_t first, std::int64_t pieces) {
    alignas(64) float values[kNormPiece];
    const Cut cut{op.n, kNormPiece};
    for (std::int64_t piece = first; piece < first + pieces; ++piece) {
      const std::int64_t begin = cut.begin(piece), n = cut.length(piece);
      round_piece<Wire>(op.accumulated + begin, values, static_cast<Out*>(op.out) + begin, n);
      op.square_sums[piece] = square_sum(values, n);
    }
  });
}

template <class Wire>
void finalize_to(const FinalizeGradient& op) {
  assert(op.out_dtype == op.wire || op.out_dtype == DType::f32);
  if (op.out_dtype == DType::f32)
    finalize<Wire, float>(op);
  else
    finalize<Wire, Wire>(op);
}

}  // namespace

void accumulate_on_host(float* accumulator, const float* gradient, std::int64_t n) {
  host::for_each_piece(Cut{n, host::kElementPiece},
                       [&](std::int64_t first, std::int64_t count) { add(accumulator + first, gradient + first, count); });
}

void finalize_gradient_on_host(const FinalizeGradient& op) {
  switch (op.wire) {
    case DType::f32: return finalize_to<float>(op);
    case DType::bf16: return finalize_to<bf16>(op);
    case DType::f16: return finalize_to<f16>(op);
  }
}

}  // namespace spillway
