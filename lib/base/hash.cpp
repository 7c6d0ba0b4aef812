#include "base/hash.h"

#include <new>

#include <fmt/format.h>
#include <xxhash.h>

namespace spillway {

std::uint64_t hash_bytes(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}

void Hasher::add(std::string_view text) {
  add(static_cast<std::int64_t>(text.size()));
  add(std::as_bytes(std::span(text)));
}

void Hasher::add(std::int64_t value) { add(std::as_bytes(std::span(&value, 1))); }

std::uint64_t Hasher::value() const { return XXH3_64bits_digest(state_->xxh); }

namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection that leaves no bit unmixed.
std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

template <class T>
std::uint64_t sum_of_mixes(std::uint64_t key, std::int64_t first, std::span<const T> values) {
  std::uint64_t sum = 0;
  auto index = static_cast<std::uint64_t>(first);
  // The position is mixed before the value joins it, so that no sum of a position and a value stands for another.
  for (const T value : values) sum += mixed(mixed(key + index++ * 0x9e3779b97f4a7c15u) ^ value);
  return sum;
}

}  // namespace

std::uint64_t element_hash(std::uint64_t key, std::int64_t first, std::span<const std::uint32_t> values) {
  return sum_of_mixes(key, first, values);
}

std::uint64_t element_hash(std::uint64_t key, std::int64_t first, std::span<const std::uint16_t> values) {
  return sum_of_mixes(key, first, values);
}

std::uint64_t hash_key(std::string_view name, std::string_view kind) {
  Hasher hasher;
  hasher.add(name);
  hasher.add(kind);
  return hasher.value();
}

std::string hex64(std::uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace spillway
