// The traffic of an Adam step without its arithmetic: what the memory allows such a step. 28 bytes a parameter, either
// 12 of state and an f32 gradient read, 12 of state written; or 12 and a 16-bit gradient read, 12 and a 16-bit weight written.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace spillway::bench {

inline constexpr int kTrafficBytes = 28;
inline constexpr std::int64_t kTrafficUnit = 32;  // elements; what is passed over begins and ends on multiples of it

struct TrafficArrays {
  std::array<std::uint32_t*, 3> state;  // 64-byte aligned, as all; exclusive-ored with the gradient, so that two
                                        // passes restore them
  const void* gradient;                 // 32 or 16 bits
  void* weight;                         // 16 bits; nullptr: 32-bit gradient and no weight
};

// Elements [first, first + n).
using TrafficPass = void (*)(const TrafficArrays& arrays, std::int64_t first, std::int64_t n);

struct TrafficKernel {
  std::string_view name;
  TrafficPass pass;
};

// All that this CPU can run and that may be the quickest: which one is depends on the machine.
std::vector<TrafficKernel> traffic_kernels(bool sixteen_bit);

}  // namespace spillway::bench
