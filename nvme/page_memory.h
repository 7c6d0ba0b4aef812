// Whole pages, as a file opened with O_DIRECT wants them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "spillway/swap_store.h"

namespace spillway {

constexpr std::int64_t whole_pages(std::int64_t bytes) {
  return (bytes + SwapStore::alignment - 1) / SwapStore::alignment * SwapStore::alignment;
}

class PageMemory {
 public:
  explicit PageMemory(std::int64_t bytes)
      : size_(static_cast<std::size_t>(bytes)), data_(static_cast<std::byte*>(::operator new(size_, std::align_val_t{SwapStore::alignment}))) {
    std::fill_n(data_.get(), size_, std::byte{0});
  }

  std::span<std::byte> span() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, std::align_val_t{SwapStore::alignment}); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace spillway
