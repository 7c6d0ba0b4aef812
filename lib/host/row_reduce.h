// Reductions over one row in a fixed order: sixteen lanes, each in element order, then a fixed tree. The
// lanes make the loops vectorise, and stating them makes every instruction set give the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/clones.h"

namespace spillway::host {

inline constexpr std::int64_t kLanes = 16;

SPILLWAY_INLINE float sum_of_lanes(float (&lanes)[kLanes]) {
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// f(i) summed over [0, n). f may have effects on element i.
template <class F>
SPILLWAY_INLINE float row_sum(std::int64_t n, F f) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += f(i + lane);
  }
  for (std::int64_t lane = 0; i + lane < n; ++lane) lanes[lane] += f(i + lane);
  return sum_of_lanes(lanes);
}

SPILLWAY_INLINE float larger(float a, float b) { return a > b ? a : b; }

// The largest of x[0, n), n >= 1; NaN is passed over.
SPILLWAY_INLINE float row_max(const float* x, std::int64_t n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = larger(x[i + lane], lanes[lane]);
  }
  for (std::int64_t lane = 0; i + lane < n; ++lane) lanes[lane] = larger(x[i + lane], lanes[lane]);
  return *std::max_element(lanes, lanes + kLanes);
}

}  // namespace spillway::host
