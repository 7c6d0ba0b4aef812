// Memory that O_DIRECT accepts, with contents that tell where every byte belongs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

namespace spillway::testing {

class AlignedBuffer {
 public:
  static constexpr std::align_val_t kAlignment{4096};

  explicit AlignedBuffer(std::int64_t bytes)
      : size_(static_cast<std::size_t>(bytes)), data_(static_cast<std::byte*>(::operator new(size_, kAlignment))) {
    std::fill_n(data_.get(), size_, std::byte{0xee});
  }

  std::byte* data() const { return data_.get(); }
  std::int64_t size() const { return static_cast<std::int64_t>(size_); }
  std::span<std::byte> span() const { return {data_.get(), size_}; }

  // A different sequence for every seed (SplitMix64, Steele et al. 2014).
  void fill(std::uint64_t seed) {
    std::uint64_t state = seed * 0x9e3779b97f4a7c15u, word = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      if (i % 8 == 0) {
        word = state += 0x9e3779b97f4a7c15u;
        word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
        word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
        word ^= word >> 31;
      }
      data_.get()[i] = static_cast<std::byte>(word >> (i % 8 * 8));
    }
  }

  friend bool operator==(const AlignedBuffer& a, const AlignedBuffer& b) {
    return std::ranges::equal(a.span(), b.span());
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace spillway::testing
