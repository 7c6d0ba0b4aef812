#include "data/permutation.h"

#include <bit>

namespace spillway {

namespace {

// Four rounds make a strong pseudo-random permutation of wide halves (Luby and Rackoff 1988); small data
// sets have halves of a few bits, where more rounds come closer to uniform.
constexpr std::uint64_t kRounds = 8;

}  // namespace

std::uint64_t mix_bits(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

Permutation::Permutation(std::int64_t size, std::uint64_t key)
    : size_(static_cast<std::uint64_t>(size)), key_(key), half_bits_((std::bit_width(size_ - 1) + 1) / 2) {}

std::int64_t Permutation::operator()(std::int64_t index) const {
  const std::uint64_t half_mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits_, right = value & half_mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = left ^ (mix_bits(mix_bits(key_ + round) ^ right) & half_mask);
      left = right;
      right = mixed;
    }
    value = left << half_bits_ | right;
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

}  // namespace spillway
