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

// Sixteen lower-case hexadecimal digits.
std::string hex64(std::uint64_t value);

}  // namespace spillway
