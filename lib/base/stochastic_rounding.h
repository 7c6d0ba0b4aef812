// The random bits of stochastic rounding: a hash of what is rounded where and when, so that they do not depend on who
// computes, in which order, or on which device.
#pragma once

#include <cstdint>

namespace spillway {

// Of all positions that agree in their upper 32 bits, in one step.
struct RoundingKeys {
  std::uint32_t first;
  std::uint32_t second;
};

// The 64-bit finaliser of MurmurHash3 (Appleby; constants of variant 13, Stafford 2011), as in SplitMix64.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr RoundingKeys rounding_keys(std::uint64_t seed, std::int64_t step, std::uint64_t position) {
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;
  const std::uint64_t key = mix64(mix64(mix64(seed + golden) + static_cast<std::uint64_t>(step) * golden) + (position >> 32) * golden);
  return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
}

// 32 bits for the element at `position`, of which only the lower 32 bits count here. A two-round integer hash with the
// constants of lowbias32 (Wellons 2018, "Prospecting for hash functions"), keyed before each round.
constexpr std::uint32_t rounding_bits(RoundingKeys keys, std::uint32_t position) {
  std::uint32_t x = position ^ keys.first;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = ((x ^ (x >> 15)) + keys.second) * 0x846ca68bu;
  return x ^ (x >> 16);
}

}  // namespace spillway
