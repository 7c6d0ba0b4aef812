// Arithmetic that is stated bit by bit: nvcc never contracts these to FMA, and conversions round and treat NaN as
// include/spillway/dtype.h does on the host. The same text serves the simulation, which supplies the intrinsics.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace spillway::gpu {

// Each rounds once, to nearest even.
__device__ inline float mul_rn(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float add_rn(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float sub_rn(float a, float b) { return __fsub_rn(a, b); }
__device__ inline float div_rn(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline float sqrt_rn(float a) { return __fsqrt_rn(a); }
__device__ inline float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }

__device__ inline double mul_rn(double a, double b) { return __dmul_rn(a, b); }
__device__ inline double add_rn(double a, double b) { return __dadd_rn(a, b); }
__device__ inline double sub_rn(double a, double b) { return __dsub_rn(a, b); }
__device__ inline double div_rn(double a, double b) { return __ddiv_rn(a, b); }
__device__ inline double sqrt_rn(double a) { return __dsqrt_rn(a); }
__device__ inline double fma_rn(double a, double b, double c) { return __fma_rn(a, b, c); }

// e^x and its like by the special function units: about 2 ulp, not the same bits as on the host.
__device__ inline float fast_exp(float x) { return __expf(x); }
__device__ inline float fast_log(float x) { return __logf(x); }
__device__ inline float fast_rsqrt(float x) { return rsqrtf(x); }

// Exact.
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Round to nearest, ties to even, subnormals kept, overflow to infinity. NaN stays a quiet NaN with its sign and the
// upper bits of its payload: the conversion instructions would make every NaN the same one.
template <class T>
__device__ inline T from_float(float x);

template <>
__device__ inline float from_float<float>(float x) {
  return x;
}

template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  const unsigned bits = __float_as_uint(x);
  const __nv_bfloat16 rounded = __float2bfloat16_rn(x);
  return x != x ? __ushort_as_bfloat16(static_cast<unsigned short>((bits >> 16) | 0x40u)) : rounded;
}

template <>
__device__ inline __half from_float<__half>(float x) {
  const unsigned bits = __float_as_uint(x);
  const __half rounded = __float2half_rn(x);
  const unsigned quiet_nan = ((bits >> 16) & 0x8000u) | 0x7e00u | ((bits >> 13) & 0x3ffu);
  return x != x ? __ushort_as_half(static_cast<unsigned short>(quiet_nan)) : rounded;
}

}  // namespace spillway::gpu
