// One mapping of memory, present from the start, with a page after it that faults when touched. What host arenas of
// every device are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "spillway/byte_range.h"

namespace spillway {

enum class Pin : bool { no, yes };

class Arena {
 public:
  // `bytes`, rounded up to whole pages, zeroed. Pin::yes locks them in memory where the system allows. On a machine of
  // several NUMA nodes each of `stretches` is divided over them as parallel_for divides its pieces; the rest is too, as a
  // whole. Throws MemoryError that names `purpose`.
  Arena(std::string_view purpose, std::int64_t bytes, Pin pin, std::span<const ByteRange> stretches = {});
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&&) = delete;

  std::byte* data() const { return data_; }

 private:
  void* reservation_ = nullptr;
  std::size_t reserved_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace spillway
