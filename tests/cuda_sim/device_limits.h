// What a simulated device can do: compute capability 9.0.
#pragma once

#include <cstddef>

namespace cuda_sim {

inline constexpr int kComputeMajor = 9, kComputeMinor = 0;
inline constexpr unsigned kMaxBlock[3] = {1024, 1024, 64};
inline constexpr unsigned kMaxGrid[3] = {0x7fffffff, 65535, 65535};
inline constexpr std::size_t kDefaultSharedBytes = 48 * 1024;  // static and dynamic together, unless a kernel asks for more
inline constexpr std::size_t kMaxSharedBytes = 227 * 1024;

}  // namespace cuda_sim
