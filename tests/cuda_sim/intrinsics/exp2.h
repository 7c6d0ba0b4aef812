// The simulation's half of gpu/intrinsics/exp2.h: correctly rounded, and 0 where the hardware's is.
#pragma once

#include <cmath>

namespace spillway::gpu {

inline float fast_exp2(float x) {
  const float result = std::exp2(x);
  return result < 0x1p-126f ? 0.0f : result;
}

}  // namespace spillway::gpu
