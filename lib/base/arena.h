// One mapping of memory, present from the start, with a page after it that faults when touched. What host arenas of
// every device are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace spillway {

enum class Pin : bool { no, yes };

class Arena {
 public:
  // `bytes`, rounded up to whole pages, zeroed. Pin::yes locks them in memory where the system allows.
  // Throws MemoryError that names `purpose`.
  Arena(std::string_view purpose, std::int64_t bytes, Pin pin);
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
