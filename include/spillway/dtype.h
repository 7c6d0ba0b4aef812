// Element types and the conversions between them.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace spillway {

// Storage types of weights, activations and gradients. Accumulation is always f32.
enum class DType : std::uint8_t { f32, bf16, f16 };

constexpr std::int64_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::f16: return "fp16";
  }
  return "?";
}

// bfloat16: the upper half of an IEEE binary32.
struct bf16 {
  std::uint16_t bits;
};

// IEEE binary16.
struct f16 {
  std::uint16_t bits;
};

constexpr float to_float(float x) { return x; }

constexpr float to_float(bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

// Exact. Branch-free so that loops over it vectorise: the exponent is rebased by one multiplication,
// which also normalises subnormals; infinities and NaN keep their payload.
constexpr float to_float(f16 x) {
  const std::uint32_t sign = (std::uint32_t{x.bits} & 0x8000u) << 16;
  const std::uint32_t magnitude = (std::uint32_t{x.bits} & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

template <class T>
constexpr T from_float(float x);

template <>
constexpr float from_float<float>(float x) {
  return x;
}

// Round to nearest, ties to even. NaN stays a (quiet) NaN.
template <>
constexpr bf16 from_float<bf16>(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (u >> 16) | 0x40u;
  const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
  return bf16{static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}

// Round to nearest, ties to even, subnormals kept, overflow to infinity. NaN stays a (quiet) NaN.
template <>
constexpr f16 from_float<f16>(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t a = u & 0x7fffffffu;
  // Normal results: rebias the exponent, round at bit 13.
  const std::uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  // Subnormal results: adding 0.5 aligns the significand so that the hardware rounds it.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(a) + 0.5f) - 0x3f000000u;
  std::uint32_t h = a < 0x38800000u ? subnormal : normal;
  h = a >= 0x477ff000u ? 0x7c00u : h;
  h = a > 0x7f800000u ? (0x7e00u | ((a >> 13) & 0x3ffu)) : h;
  return f16{static_cast<std::uint16_t>(sign | h)};
}

// The value `x` has after a round trip through T.
template <class T>
constexpr float round_to(float x) {
  return to_float(from_float<T>(x));
}

}  // namespace spillway
