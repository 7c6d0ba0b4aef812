// 64-bit hashes: checksums of tiles, identities of plans and of training state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace spillway {

// XXH3, 64 bits. Not cryptographic: finds accidents, not attackers.
std::uint64_t hash_bytes(std::span<const std::byte> bytes);

// The same hash over data that arrives in parts; how it is cut does not matter.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);   // its length, then its bytes
  void add(std::int64_t value);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A hash of a tensor that can be taken in parts by anyone and added up (modulo 2^64): the sum over its elements of a
// mix of the tensor's key, the element's index and its bits. How the tensor is cut, and over how many ranks, does
// not matter. The values are those of elements first, first + 1, ...
std::uint64_t element_hash(std::uint64_t key, std::int64_t first, std::span<const std::uint32_t> values);
std::uint64_t element_hash(std::uint64_t key, std::int64_t first, std::span<const std::uint16_t> values);

// The key of a named tensor.
std::uint64_t hash_key(std::string_view name, std::string_view kind);

// Sixteen lower-case hexadecimal digits.
std::string hex64(std::uint64_t value);

}  // namespace spillway
