#include "base/hash.h"

#include <algorithm>
#include <array>
#include <new>

#include <fmt/format.h>
#include <xxhash.h>
#if SPILLWAY_XXH_DISPATCH
#include <xxh_x86dispatch.h>  // XXH3 by the widest instructions that the processor has; the values are the same
#endif

#include "base/clones.h"

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

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection that leaves no bit unmixed.
constexpr std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Elements are hashed by blocks of their tensor: the whole mix is paid once a block, and an element is left with one
// multiplier of its own and one multiplication of 32 by 64 bits, which every instruction set does many of at a time.
constexpr int kBlock = 64;

// What tells the elements of a block apart: the halves of SplitMix64's first values.
struct Places {
  std::array<std::uint32_t, kBlock> low, high;
};

constexpr Places kPlaces = [] {
  Places places{};
  for (std::size_t i = 0; i < kBlock; ++i) {
    const std::uint64_t value = mixed((i + 1) * kGolden);
    places.low[i] = static_cast<std::uint32_t>(value);
    places.high[i] = static_cast<std::uint32_t>(value >> 32);
  }
  return places;
}();

// With m the place's number in this block, of which the lowest bit is set where it multiplies:
//   x = m + (m | 1) * spread(value)  mod 2^64,  folded: x ^ x >> 32.
// Every step is a bijection of the value, so that no change of a single element goes unseen. Spreading lets the
// highest bits of a value meet the lower half of the multiplier too, and folding breaks the linearity of the sum.
SPILLWAY_INLINE std::uint64_t element_mix(std::uint64_t block_key, std::size_t place, std::uint32_t value) {
  const std::uint32_t spread = value ^ (value >> 16);
  const std::uint32_t low = static_cast<std::uint32_t>(block_key) ^ kPlaces.low[place];
  const std::uint32_t high = static_cast<std::uint32_t>(block_key >> 32) ^ kPlaces.high[place];
  const std::uint32_t upper = high * spread + high;
  const std::uint64_t x = static_cast<std::uint64_t>(low | 1) * spread + low + (static_cast<std::uint64_t>(upper) << 32);
  return x ^ (x >> 32);
}

template <class T>
SPILLWAY_INLINE std::uint64_t sum_of_mixes(std::uint64_t key, std::int64_t first, std::span<const T> values) {
  std::uint64_t sum = 0;
  auto block = static_cast<std::uint64_t>(first) / kBlock;
  std::size_t place = static_cast<std::uint64_t>(first) % kBlock;
  const T* value = values.data();
  for (std::size_t left = values.size(); left > 0; ++block) {
    const std::uint64_t block_key = mixed(key + block * kGolden);
    const std::size_t count = std::min(left, kBlock - place);
    if (count == kBlock) {  // of known length, for the compiler
      for (std::size_t i = 0; i < kBlock; ++i) sum += element_mix(block_key, i, value[i]);
    } else {
      for (std::size_t i = 0; i < count; ++i) sum += element_mix(block_key, place + i, value[i]);
    }
    value += count;
    left -= count;
    place = 0;
  }
  return sum;
}

SPILLWAY_CLONES std::uint64_t sum_of_mixes_32(std::uint64_t key, std::int64_t first, std::span<const std::uint32_t> values) {
  return sum_of_mixes(key, first, values);
}

SPILLWAY_CLONES std::uint64_t sum_of_mixes_16(std::uint64_t key, std::int64_t first, std::span<const std::uint16_t> values) {
  return sum_of_mixes(key, first, values);
}

}  // namespace

std::uint64_t element_hash(std::uint64_t key, std::int64_t first, std::span<const std::uint32_t> values) {
  return sum_of_mixes_32(key, first, values);
}

std::uint64_t element_hash(std::uint64_t key, std::int64_t first, std::span<const std::uint16_t> values) {
  return sum_of_mixes_16(key, first, values);
}

std::uint64_t hash_key(std::string_view name, std::string_view kind) {
  Hasher hasher;
  hasher.add(name);
  hasher.add(kind);
  return hasher.value();
}

std::string hex64(std::uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace spillway
