// Moments of fewer bytes, bit by bit as on the CPU: stochastic rounding to bf16, and the scale and codes of a block of
// 8-bit moments (spillway/optimizer.h has the definition).
#pragma once

#include <bit>
#include <cstdint>

#include "intrinsics/math.h"
#include "spillway/optimizer.h"

namespace spillway::cuda {

__device__ inline float magnitude(float x) { return __uint_as_float(__float_as_uint(x) & 0x7fffffffu); }

// The 16 bits of an element's 32 that are for moment 0 or 1.
template <int moment>
__device__ inline unsigned bits_of_moment(unsigned bits) {
  return moment == 0 ? bits >> 16 : bits & 0xffffu;
}

// From the largest finite bf16 on, towards zero. A NaN is made quiet, so that it stays one.
__device__ inline std::uint16_t stochastic_bf16(float x, unsigned random) {
  const unsigned bits = __float_as_uint(x);
  const unsigned added = magnitude(x) < __uint_as_float(0x7f7f0000u) ? random : 0u;
  return static_cast<std::uint16_t>(((bits + added) >> 16) | (x != x ? 0x40u : 0u));
}

// Of each law: the largest code, its value, and the least code of a value above half of that, with which a block's largest
// magnitude always needs the same scale again.
template <MomentLaw law>
struct CodeRange;
template <>
struct CodeRange<MomentLaw::square> {
  static constexpr float kLargest = 127.0f;
  static constexpr float kValue = 16129.0f;
  static constexpr float kLeastOfUpperHalf = 90.0f;
};
template <>
struct CodeRange<MomentLaw::fourth_power> {
  static constexpr float kLargest = 255.0f;
  static constexpr float kValue = 4228250624.0f;  // 255^4 is one more
  static constexpr float kLeastOfUpperHalf = 215.0f;
};

struct BlockScale {
  std::uint8_t byte;   // the exponent byte of s; 255: the block has an infinity or NaN, and codes of zeros
  float inverse;       // 1 / s
  float largest_code;  // whose value is finite
};

// For a block's largest magnitude, where a NaN counts as infinite.
template <MomentLaw law>
__device__ inline BlockScale block_scale(float largest) {
  using Range = CodeRange<law>;
  constexpr auto kValueBits = std::bit_cast<unsigned>(Range::kValue);
  constexpr int kExponent = static_cast<int>(kValueBits >> 23) - 127;
  constexpr unsigned kBelowNextExponent = 0x7fffffu - (kValueBits & 0x7fffffu);
  constexpr int kTop = 255 - kExponent;  // from this byte on the values of the upper half of codes overflow
  const unsigned bits = __float_as_uint(largest);
  if (bits == 0) return {0, 1.0f, Range::kLargest};
  if (bits >= 0x7f800000u) return {255, 1.0f, Range::kLargest};
  const int byte = max(static_cast<int>((bits + kBelowNextExponent) >> 23) - kExponent, 1);
  return {static_cast<std::uint8_t>(byte), __uint_as_float(static_cast<unsigned>(254 - byte) << 23),
          byte == kTop ? Range::kLeastOfUpperHalf : Range::kLargest};
}

__device__ inline float scale_of(std::uint8_t byte) { return __uint_as_float(unsigned{byte} << 23); }

template <MomentLaw law>
__device__ inline float decode(std::uint8_t byte, float scale) {
  if constexpr (law == MomentLaw::square) {
    const float code = static_cast<float>(static_cast<std::int8_t>(byte));
    return gpu::mul_rn(gpu::mul_rn(code, magnitude(code)), scale);
  } else {
    const float code = static_cast<float>(byte), squared = gpu::mul_rn(code, code);
    return gpu::mul_rn(gpu::mul_rn(squared, squared), scale);
  }
}

// The code below y, or the next one where `u`, in [0, 1), is less than y's share of the way there.
template <MomentLaw law>
__device__ inline float rounded_code(float y, float u) {
  using gpu::mul_rn;
  using gpu::sub_rn;
  if constexpr (law == MomentLaw::square) {
    const float code = static_cast<float>(static_cast<int>(gpu::sqrt_rn(y)));
    const float way = gpu::add_rn(gpu::add_rn(code, code), 1.0f);
    return mul_rn(u, way) < sub_rn(y, mul_rn(code, code)) ? gpu::add_rn(code, 1.0f) : code;
  } else {
    const float code = static_cast<float>(static_cast<int>(gpu::sqrt_rn(gpu::sqrt_rn(y)))), next = gpu::add_rn(code, 1.0f);
    const float below = mul_rn(mul_rn(code, code), mul_rn(code, code)), above = mul_rn(mul_rn(next, next), mul_rn(next, next));
    return mul_rn(u, sub_rn(above, below)) < sub_rn(y, below) ? next : code;
  }
}

template <MomentLaw law>
__device__ inline std::uint8_t encode(float x, unsigned random, const BlockScale& scale) {
  using Range = CodeRange<law>;
  if (scale.byte == 255) return 0;
  const float y = gpu::mul_rn(magnitude(x), scale.inverse);
  float least = law == MomentLaw::fourth_power && x > 0.0f ? 1.0f : 0.0f;
  if (y > Range::kValue / 2.0f) least = Range::kLeastOfUpperHalf;
  float code = rounded_code<law>(y, gpu::mul_rn(static_cast<float>(static_cast<int>(random)), 0x1p-16f));
  code = code < least ? least : code;
  code = code > scale.largest_code ? scale.largest_code : code;
  const int whole = static_cast<int>(code);
  return static_cast<std::uint8_t>(law == MomentLaw::square && x < 0.0f ? -whole : whole);
}

}  // namespace spillway::cuda
