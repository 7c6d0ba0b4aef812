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

std::string hex64(std::uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace spillway
