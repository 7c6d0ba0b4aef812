// Elementary functions written so that loops over them vectorise and every instruction set gives the
// same bits: multiplications, additions and integer operations only.
#pragma once

#include <bit>
#include <cstdint>

#include "base/clones.h"

namespace spillway::host {

// e^x. Relative error below 1 unit in the last place (0.985 measured) wherever the result is normal; below
// e^-87.3 it falls gradually through the subnormals to 0, above 88.72 it is infinity; NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q a polynomial of degree 4 whose
// coefficients minimise the maximal error over that range (6.5e-9 relative); then a scaling by 2^n in
// two exact halves, so that neither factor leaves the exponent range.
SPILLWAY_INLINE float fast_exp(float x) {
  constexpr float kLowest = -104.0f, kHighest = 89.0f;  // e^kLowest rounds to 0, e^kHighest to infinity
  constexpr float kRounder = 0x1.8p23f;                 // adding it rounds to an integer, left in the low bits
  constexpr float kLn2High = 0x1.62ep-1f;               // 13 bits: n * kLn2High is exact
  constexpr float kLn2Low = 0x1.0bfbe8p-15f;
  x = x < kLowest ? kLowest : x;
  x = x > kHighest ? kHighest : x;
  const float shifted = x * 0x1.715476p0f + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float q = 0x1.6db42p-10f;
  q = q * r + 0x1.123b54p-7f;
  q = q * r + 0x1.55545ep-5f;
  q = q * r + 0x1.55548ep-3f;
  q = q * r + 0x1p-1f;
  const float e = (r * r) * q + r + 1.0f;
  const std::int32_t exponent =
      static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRounder));
  const std::int32_t half = exponent >> 1;
  const float scale_a = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const float scale_b = std::bit_cast<float>(static_cast<std::uint32_t>(exponent - half + 127) << 23);
  return e * scale_a * scale_b;
}

}  // namespace spillway::host
