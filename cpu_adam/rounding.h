// Rounding to bf16, and the random bits of stochastic rounding, on vectors. See kernel.h on linkage, and for what an `Isa`
// is. Comparisons give values, not branches, and select by floats, whose bits may be anything.
#pragma once

#include "kernels.h"

namespace spillway::cpu_adam {
namespace {

template <class Isa>
inline __attribute__((always_inline)) typename Isa::F magnitude(typename Isa::F x) {
  return Isa::from_bits(Isa::bits(x) & typename Isa::U(0x7fffffffu));
}

// The upper halves of bits(x) + increment, which rounds by what `increment` is; where x is not below `limit` or is a NaN,
// of bits(x). x is the result of an f32 operation, so that a NaN is a quiet one, which its upper half is too.
template <class Isa>
inline __attribute__((always_inline)) typename Isa::U upper_half(typename Isa::F x, typename Isa::U increment, typename Isa::F limit) {
  using F = typename Isa::F;
  const F added = Isa::select(magnitude<Isa>(x) < limit, Isa::from_bits(increment), F(0.0f));
  return (Isa::bits(x) + Isa::bits(added)) >> 16;
}

// To nearest, ties to even.
template <class Isa>
inline __attribute__((always_inline)) typename Isa::U nearest_bf16(typename Isa::F x) {
  using U = typename Isa::U;
  const U odd = (Isa::bits(x) >> 16) & U(1u);
  return upper_half<Isa>(x, odd + U(0x7fffu), Isa::from_bits(U(0x7f800000u)));
}

// `u`: 16 random bits. From the largest finite bf16 on, towards zero.
template <class Isa>
inline __attribute__((always_inline)) typename Isa::U stochastic_bf16(typename Isa::F x, typename Isa::U u) {
  return upper_half<Isa>(x, u, Isa::from_bits(typename Isa::U(0x7f7f0000u)));
}

// rounding_bits() of stochastic_rounding.h for consecutive positions.
template <class Isa>
class RandomBits {
 public:
  using U = typename Isa::U;
  explicit RandomBits(RoundingKeys keys) : first_(keys.first), second_(keys.second) {}

  inline __attribute__((always_inline)) U at(std::uint32_t position) const {
    U x = (U(position) + Isa::iota()) ^ first_;
    x = (x ^ (x >> 16)) * U(0x7feb352du);
    x = ((x ^ (x >> 15)) + second_) * U(0x846ca68bu);
    return x ^ (x >> 16);
  }

  // The 16 bits of them for moment 0 or 1.
  static inline __attribute__((always_inline)) U of_moment(int moment, U bits) { return moment == 0 ? bits >> 16 : bits & U(0xffffu); }

 private:
  U first_, second_;
};

}  // namespace
}  // namespace spillway::cpu_adam
