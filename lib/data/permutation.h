// A pseudo-random permutation of 0 .. size-1 that is computed, not stored.
#pragma once

#include <cstdint>

namespace spillway {

// Mixes 64 bits: the output function of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom
// number generators", section 3). A bijection.
std::uint64_t mix_bits(std::uint64_t x);

// A Feistel network over the next even power of two, walked along its cycle until the value is below `size`
// (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", section 3: cycle walking keeps it a
// permutation). Constant memory; at most four network evaluations per value on average.
class Permutation {
 public:
  // size >= 1. The same size and key give the same permutation, on every machine.
  Permutation(std::int64_t size, std::uint64_t key);

  std::int64_t operator()(std::int64_t index) const;  // 0 <= index < size

 private:
  std::uint64_t size_;
  std::uint64_t key_;
  int half_bits_;
};

}  // namespace spillway
