// Initial parameters as a function of (seed, name, element index): no generator state, so any range can be
// produced anywhere, in any order.
#include <algorithm>

#include "base/hash.h"
#include "base/parallel.h"
#include "model/normal.h"
#include "spillway/model.h"

namespace spillway {

namespace {

// The mixing function of SplitMix64 (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number
// Generators", section 5): a bijection that makes successive counters look independent.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

// In the open interval (0, 1), symmetric about 1/2, exact: 52 random bits and a half.
constexpr double unit_interval(std::uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

constexpr std::int64_t kPiece = 1 << 14;

}  // namespace

void initial_values(const ParamSpec& param, std::uint64_t seed, std::int64_t begin, std::span<float> out) {
  if (param.init != ParamInit::normal) {
    std::fill(out.begin(), out.end(), param.init == ParamInit::ones ? 1.0f : 0.0f);
    return;
  }
  Hasher hasher;
  hasher.add(param.name);
  const std::uint64_t key = mix(hasher.value() ^ mix(seed + kGolden));
  const double stddev = param.stddev;
  const auto count = static_cast<std::int64_t>(out.size());
  parallel_for((count + kPiece - 1) / kPiece, [&](std::int64_t piece) {
    const std::int64_t end = std::min(count, (piece + 1) * kPiece);
    for (std::int64_t i = piece * kPiece; i < end; ++i) {
      const auto index = static_cast<std::uint64_t>(begin + i);
      const double z = inverse_normal_cdf(unit_interval(mix(key + (index + 1) * kGolden)));
      out[static_cast<std::size_t>(i)] = static_cast<float>(stddev * z);
    }
  });
}

}  // namespace spillway
