#include "runtime/state_hash.h"

#include <cassert>

#include "base/hash.h"

namespace spillway {

std::string_view name_of(StateSection section) {
  switch (section) {
    case StateSection::master: return "master";
    case StateSection::exp_avg: return "exp_avg";
    case StateSection::exp_avg_sq: return "exp_avg_sq";
    case StateSection::weight: return "weight";
  }
  return "?";
}

std::span<const StateSection> sections_of(bool frozen) {
  static constexpr std::array trained = {StateSection::master, StateSection::exp_avg, StateSection::exp_avg_sq};
  static constexpr std::array kept_frozen = {StateSection::weight};
  if (frozen) return kept_frozen;
  return trained;
}

std::uint64_t section_hash(std::string_view param, StateSection section, DType dtype, std::int64_t begin,
                           std::span<const std::byte> bytes) {
  const std::uint64_t key = hash_key(param, name_of(section));
  if (dtype == DType::f32) {
    assert(reinterpret_cast<std::uintptr_t>(bytes.data()) % 4 == 0 && bytes.size() % 4 == 0);
    return element_hash(key, begin, std::span(reinterpret_cast<const std::uint32_t*>(bytes.data()), bytes.size() / 4));
  }
  assert(reinterpret_cast<std::uintptr_t>(bytes.data()) % 2 == 0 && bytes.size() % 2 == 0);
  return element_hash(key, begin, std::span(reinterpret_cast<const std::uint16_t*>(bytes.data()), bytes.size() / 2));
}

std::uint64_t item_hash(const SnapshotItem& item, DType model_dtype, std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  std::size_t start = 0;
  for (const StateSection section : sections_of(item.frozen)) {
    const DType dtype = dtype_of(section, model_dtype);
    std::size_t at = start;
    for (const StateRange& range : item.ranges) {
      const auto size = static_cast<std::size_t>((range.end - range.begin) * size_of(dtype));
      sum += section_hash(range.param, section, dtype, range.begin, bytes.subspan(at, size));
      at += size;
    }
    start += static_cast<std::size_t>(item.section_bytes);
  }
  return sum;
}

std::uint64_t combine_state_hash(std::uint64_t sum, std::int64_t applied_steps) {
  Hasher hasher;
  hasher.add(static_cast<std::int64_t>(sum));
  hasher.add(applied_steps);
  return hasher.value();
}

}  // namespace spillway
