// GELU in its tanh form, forward and backward.
//
//   y = x/2 (1 + tanh u) = x s,  u = sqrt(2/pi) (x + 0.044715 x^3),  s = 1 / (1 + e^(-2u))
//   dy/dx = s + x s (1 - s) 2 du/dx
//
// The logistic form is the same function without the cancellation of 1 + tanh u at negative x, and its
// complement 1 - s = s e^(-2u) is as exact. Absolute error at most 2^-22 max(|y|, 2^-3) in f32 (tested
// against double); a non-finite x gives NaN, +infinity or, for -infinity, its limit 0.
#include "base/clones.h"
#include "host/kernels.h"
#include "host/math.h"
#include "host/partition.h"

namespace spillway::host {

namespace {

constexpr float kTwiceSqrt2OverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;
constexpr float kSaturated = 30.0f;     // |x| beyond it changes neither s nor a finite product with s
constexpr float kLargestPower = 80.0f;  // e^80 is finite, and 30 e^-80 is nothing

struct Logistic {
  float x;           // clamped below, so that x s stays the limit
  float s;           // 1 / (1 + e^(-2u))
  float complement;  // 1 - s
  float square;      // x^2, clamped
};

SPILLWAY_INLINE Logistic logistic(float x) {
  const float low = x < -kSaturated ? -kSaturated : x;
  const float clamped = low > kSaturated ? kSaturated : low;
  const float square = clamped * clamped;
  const float twice_u = kTwiceSqrt2OverPi * (clamped + kCubic * (square * clamped));
  const float power = -twice_u > kLargestPower ? kLargestPower : -twice_u;
  const float e = fast_exp(power);
  const float s = 1.0f / (1.0f + e);
  return {low, s, s * e, square};
}

template <class T>
SPILLWAY_CLONES void forward_piece(const T* __restrict x, T* __restrict y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const Logistic l = logistic(to_float(x[i]));
    y[i] = from_float<T>(l.x * l.s);
  }
}

template <class T>
SPILLWAY_CLONES void backward_piece(const T* dy, const T* x, T* dx, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const Logistic l = logistic(to_float(x[i]));
    const float twice_du = kTwiceSqrt2OverPi * (1.0f + (3.0f * kCubic) * l.square);
    const float slope = l.s + (l.x * l.s) * (l.complement * twice_du);
    dx[i] = from_float<T>(to_float(dy[i]) * slope);
  }
}

}  // namespace

template <class T>
void gelu_forward(const GeluForward& op) {
  const T* const x = static_cast<const T*>(op.x);
  T* const y = static_cast<T*>(op.y);
  for_each_piece(Cut{op.n, kElementPiece},
                 [&](std::int64_t first, std::int64_t n) { forward_piece(x + first, y + first, n); });
}

template <class T>
void gelu_backward(const GeluBackward& op) {
  const T* const dy = static_cast<const T*>(op.dy);
  const T* const x = static_cast<const T*>(op.x);
  T* const dx = static_cast<T*>(op.dx);
  for_each_piece(Cut{op.n, kElementPiece}, [&](std::int64_t first, std::int64_t n) {
    backward_piece(dy + first, x + first, dx + first, n);
  });
}

template void gelu_forward<float>(const GeluForward&);
template void gelu_forward<bf16>(const GeluForward&);
template void gelu_forward<f16>(const GeluForward&);
template void gelu_backward<float>(const GeluBackward&);
template void gelu_backward<bf16>(const GeluBackward&);
template void gelu_backward<f16>(const GeluBackward&);

}  // namespace spillway::host
