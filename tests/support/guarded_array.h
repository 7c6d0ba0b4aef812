// Memory for tests of kernels: starts out as NaN in every storage type, so that a read of something never
// written shows in the result, and lies between guard bytes, so that a write past an end shows too. The guards
// are other NaN, so that what is read of them shows as well.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace spillway::test {

class GuardedBytes {
 public:
  static constexpr std::size_t kGuard = 192;  // bytes on either side, at least

  explicit GuardedBytes(std::size_t bytes) : bytes_(bytes), storage_(bytes + 2 * kGuard + kAlignment) {
    std::fill_n(data(), bytes_, kNaNByte);
    fill_guard(storage_.data(), data());
    fill_guard(data() + bytes_, storage_.data() + storage_.size());
  }

  // A multiple of 64.
  std::byte* data() {
    const std::size_t first = reinterpret_cast<std::size_t>(storage_.data()) + kGuard;
    return storage_.data() + kGuard + (kAlignment - first % kAlignment) % kAlignment;
  }
  std::span<std::byte> span() { return {data(), bytes_}; }
  // With kGuard bytes on either side.
  std::span<std::byte> guarded() { return {data() - kGuard, bytes_ + 2 * kGuard}; }

  bool guards_intact() {
    const auto intact = [](std::byte* begin, std::byte* end) {
      while (begin < end && *begin == guard_at(begin)) ++begin;
      return begin == end;
    };
    return intact(storage_.data(), data()) && intact(data() + bytes_, storage_.data() + storage_.size());
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::byte kNaNByte{0xff};

  // 0xfff5 in 16 bits, and twice and four times that in 32 and 64: NaN in every storage type and in f64.
  static std::byte guard_at(const std::byte* at) { return reinterpret_cast<std::size_t>(at) % 2 == 0 ? std::byte{0xf5} : std::byte{0xff}; }

  static void fill_guard(std::byte* begin, std::byte* end) {
    for (std::byte* at = begin; at < end; ++at) *at = guard_at(at);
  }

  std::size_t bytes_;
  std::vector<std::byte> storage_;
};

// n elements of T between guards.
template <class T>
class GuardedArray {
 public:
  explicit GuardedArray(std::size_t n) : n_(n), bytes_(n * sizeof(T)) {}
  explicit GuardedArray(const std::vector<T>& values) : GuardedArray(values.size()) {
    if (n_ > 0) std::memcpy(bytes_.data(), values.data(), n_ * sizeof(T));
  }

  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  std::span<T> span() { return {data(), n_}; }
  T& operator[](std::size_t i) { return data()[i]; }
  std::size_t size() const { return n_; }
  GuardedBytes& bytes() { return bytes_; }
  bool guards_intact() { return bytes_.guards_intact(); }
  std::vector<T> values() { return {data(), data() + n_}; }

 private:
  std::size_t n_;
  GuardedBytes bytes_;
};

}  // namespace spillway::test
