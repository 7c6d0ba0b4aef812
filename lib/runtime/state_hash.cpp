#include "runtime/state_hash.h"

#include <cassert>

#include "base/hash.h"

namespace spillway {

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
  for (const StateSection section : sections_of(item.layout.format.kind, item.frozen)) {
    SectionValues values(item, section, model_dtype, bytes);
    std::int64_t first = 0;  // of the item
    for (const StateRange& range : item.ranges) {
      for (std::int64_t begin = range.begin; begin < range.end;) {
        const std::span<const std::byte> some = values.from(first, range.end - begin);
        sum += section_hash(range.param, section, values.dtype(), begin, some);
        const std::int64_t count = static_cast<std::int64_t>(some.size()) / size_of(values.dtype());
        begin += count;
        first += count;
      }
    }
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
