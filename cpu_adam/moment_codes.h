// Moments of 8 bits: the scale of a block, and its codes. See kernel.h on linkage, and for what an `Isa` is.
//
// A value is code * |code| * s (square) or code^4 * s (fourth_power), s a power of two. y = |x| / s is formed exactly, unless it
// underflows; its truncated root is the code of the value below y, and the next one is taken if y lies further than `u` of the
// way to that. Values and their differences are exact in f32, those of the fourth power to rounding.
#pragma once

#include "kernels.h"
#include "rounding.h"

namespace spillway::cpu_adam {
namespace {

constexpr int kInfinityByte = 255;
constexpr int kExponentBias = 127;

constexpr std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
constexpr float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Of each law: the largest code and its value, and the least code of a value above half of that, with which a block's
// largest magnitude always needs the same s again.
template <MomentLaw law>
struct CodeRange;
template <>
struct CodeRange<MomentLaw::square> {
  static constexpr float largest = 127.0f;
  static constexpr float value = 16129.0f;
  static constexpr float least_of_upper_half = 90.0f;
};
template <>
struct CodeRange<MomentLaw::fourth_power> {
  static constexpr float largest = 255.0f;
  static constexpr float value = 4228250624.0f;  // 255^4 is one more
  static constexpr float least_of_upper_half = 215.0f;
};

struct BlockScale {
  std::uint8_t byte;   // the exponent byte of s
  float inverse;       // 1 / s
  float largest_code;  // whose value is finite
};

// For the largest magnitude of a block, by its bits. The bytes of 0 and infinity have no inverse, and need none.
template <MomentLaw law>
inline BlockScale block_scale(std::uint32_t max_bits) {
  using Range = CodeRange<law>;
  constexpr std::uint32_t value = bits_of(Range::value);
  constexpr int value_exponent = static_cast<int>(value >> 23) - kExponentBias;
  constexpr std::uint32_t below_next_exponent = 0x7fffffu - (value & 0x7fffffu);
  // The exponent byte from which code values overflow: those of the upper half only.
  constexpr int top = 2 * kExponentBias + 1 - value_exponent;
  if (max_bits == 0) return {0, 1.0f, Range::largest};
  if (max_bits >= 0x7f800000u) return {kInfinityByte, 1.0f, Range::largest};
  const int exact = static_cast<int>((max_bits + below_next_exponent) >> 23) - value_exponent;
  const int byte = exact < 1 ? 1 : exact;
  const float inverse = float_of(static_cast<std::uint32_t>(2 * kExponentBias - byte) << 23);
  return {static_cast<std::uint8_t>(byte), inverse, byte == top ? Range::least_of_upper_half : Range::largest};
}

// Codes of x, each in the lower byte. `u` is in [0, 1).
template <class Isa, MomentLaw law>
inline __attribute__((always_inline)) typename Isa::U encode(typename Isa::F x, typename Isa::F u, typename Isa::F inverse,
                                                             typename Isa::F largest_code) {
  using F = typename Isa::F;
  using Range = CodeRange<law>;
  const F zero(0.0f), one(1.0f);
  const F y = magnitude<Isa>(x) * inverse;
  F code, least;
  if constexpr (law == MomentLaw::square) {
    code = Isa::to_float(Isa::truncate(Isa::sqrt(y)));
    code = Isa::select(u * ((code + code) + one) < y - code * code, code + one, code);
    least = zero;
  } else {
    code = Isa::to_float(Isa::truncate(Isa::sqrt(Isa::sqrt(y))));
    const F next = code + one;
    const F below = (code * code) * (code * code);
    const F above = (next * next) * (next * next);
    code = Isa::select(u * (above - below) < y - below, next, code);
    least = Isa::select(x > zero, one, zero);
  }
  least = Isa::select(y > F(Range::value / 2), F(Range::least_of_upper_half), least);
  code = Isa::select(code < least, least, code);
  code = Isa::select(code > largest_code, largest_code, code);
  if constexpr (law == MomentLaw::square) {
    code = Isa::from_bits(Isa::bits(code) | (Isa::bits(x) & typename Isa::U(0x80000000u)));
  }
  return Isa::truncate(code);
}

template <class Isa, MomentLaw law>
inline __attribute__((always_inline)) typename Isa::F decode(const std::uint8_t* codes, typename Isa::F scale) {
  using F = typename Isa::F;
  if constexpr (law == MomentLaw::square) {
    const F code = Isa::load_signed(codes);
    return (code * magnitude<Isa>(code)) * scale;
  } else {
    const F code = Isa::load_unsigned(codes);
    return ((code * code) * (code * code)) * scale;
  }
}

// n elements of one block; n is a multiple of Isa::lanes.
template <class Isa, MomentLaw law>
inline void decode_block(const std::uint8_t* codes, std::uint8_t scale_byte, float* out, std::int64_t n) {
  const typename Isa::F scale(float_of(std::uint32_t{scale_byte} << 23));
  for (std::int64_t i = 0; i < n; i += Isa::lanes) Isa::store(out + i, decode<Isa, law>(codes + i, scale));
}

// The scale of n elements of one block, which become zeros if one of them is an infinity or NaN.
template <class Isa, MomentLaw law>
inline BlockScale scale_block(float* values, std::int64_t n) {
  using U = typename Isa::U;
  U max(0u);
  for (std::int64_t i = 0; i < n; i += Isa::lanes) {
    max = Isa::max(max, Isa::bits(Isa::load(values + i)) & U(0x7fffffffu));
  }
  const BlockScale scale = block_scale<law>(Isa::largest(max));
  if (scale.byte == kInfinityByte) __builtin_memset(values, 0, static_cast<std::size_t>(n) * sizeof(float));
  return scale;
}

}  // namespace
}  // namespace spillway::cpu_adam
