// GELU in its tanh form, forward and backward, in the logistic form of lib/host/gelu.cpp:
//
//   y = x s,  dy/dx = s + x s (1 - s) 2 du/dx,  s = 1 / (1 + e^(-2u)),  u = sqrt(2/pi) (x + 0.044715 x^3)
//
// f32 storage uses exponential and division to the last place; 16-bit storage the fast ones, whose error of a few
// 2^-23 is far below its rounding.
//
// Forward moves 4 bytes an element in 16-bit storage, backward 6 (8 and 12 in f32). At 4.8 TB/s that is 1.2e12 elements
// a second forward, each about 16 instructions of the 3.0e13 a second of an H200: memory is the limit, 0.9 of its
// bandwidth expected.
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/vectors.h"

namespace spillway::cuda {

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

// Clamped by comparisons, which let a NaN through.
template <class T>
__device__ Logistic logistic(float x) {
  const float low = x < -kSaturated ? -kSaturated : x;
  const float clamped = low > kSaturated ? kSaturated : low;
  const float square = clamped * clamped;
  const float twice_u = kTwiceSqrt2OverPi * (clamped + kCubic * (square * clamped));
  const float power = -twice_u > kLargestPower ? kLargestPower : -twice_u;
  if constexpr (sizeof(T) == sizeof(float)) {
    const float e = expf(power), s = gpu::div_rn(1.0f, 1.0f + e);
    return {low, s, s * e, square};
  } else {
    const float e = gpu::fast_exp(power), s = __fdividef(1.0f, 1.0f + e);
    return {low, s, s * e, square};
  }
}

template <class T, int width>
__global__ void __launch_bounds__(kElementThreads) gelu_forward_kernel(const T* x, T* y, std::int64_t n) {
  for_each_vector<width>(n, [&](std::int64_t i, std::int64_t count) {
    float values[width];
    load(x + i, count, values);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const Logistic l = logistic<T>(values[k]);
      values[k] = l.x * l.s;
    }
    store(values, y + i, count);
  });
}

template <class T, int width>
__global__ void __launch_bounds__(kElementThreads) gelu_backward_kernel(const T* dy, const T* x, T* dx, std::int64_t n) {
  for_each_vector<width>(n, [&](std::int64_t i, std::int64_t count) {
    float values[width], gradient[width];
    load(x + i, count, values);
    load(dy + i, count, gradient);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const Logistic l = logistic<T>(values[k]);
      const float twice_du = kTwiceSqrt2OverPi * (1.0f + (3.0f * kCubic) * l.square);
      gradient[k] *= l.s + (l.x * l.s) * (l.complement * twice_du);
    }
    store(gradient, dx + i, count);
  });
}

}  // namespace

template <class T>
void gelu_forward(cudaStream_t stream, const GeluForward& op) {
  if (op.n == 0) return;
  const T* const x = static_cast<const T*>(op.x);
  T* const y = static_cast<T*>(op.y);
  constexpr int kWidth = kVectorWidth<T>;
  with_vectors_if<kWidth>(is_aligned<kWidth>(x) && is_aligned<kWidth>(y), [&](auto width) {
    launch("gelu_forward", gelu_forward_kernel<T, width>, element_shape(op.n, width), stream, x, y, op.n);
  });
}

template <class T>
void gelu_backward(cudaStream_t stream, const GeluBackward& op) {
  if (op.n == 0) return;
  const T* const dy = static_cast<const T*>(op.dy);
  const T* const x = static_cast<const T*>(op.x);
  T* const dx = static_cast<T*>(op.dx);
  constexpr int kWidth = kVectorWidth<T>;
  with_vectors_if<kWidth>(is_aligned<kWidth>(dy) && is_aligned<kWidth>(x) && is_aligned<kWidth>(dx), [&](auto width) {
    launch("gelu_backward", gelu_backward_kernel<T, width>, element_shape(op.n, width), stream, dy, x, dx, op.n);
  });
}

template void gelu_forward<float>(cudaStream_t, const GeluForward&);
template void gelu_forward<__nv_bfloat16>(cudaStream_t, const GeluForward&);
template void gelu_forward<__half>(cudaStream_t, const GeluForward&);
template void gelu_backward<float>(cudaStream_t, const GeluBackward&);
template void gelu_backward<__nv_bfloat16>(cudaStream_t, const GeluBackward&);
template void gelu_backward<__half>(cudaStream_t, const GeluBackward&);

}  // namespace spillway::cuda
