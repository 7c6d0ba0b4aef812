// Memory for tests of kernels: starts out as NaN in every storage type, so that a read of something never
// written shows in the result, and ends in guard bytes, so that a write past the end shows too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace spillway::test {

class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes) : bytes_(bytes), storage_(bytes + 2 * kGuard, kGuardByte) {
    std::fill_n(data(), bytes_, kNaNByte);
  }

  // A multiple of 64, with at least half of kGuard on either side.
  std::byte* data() {
    const std::size_t misaligned = reinterpret_cast<std::size_t>(storage_.data()) % 64;
    return storage_.data() + kGuard - misaligned;
  }
  std::span<std::byte> span() { return {data(), bytes_}; }

  bool guards_intact() {
    const auto is_guard = [](std::byte b) { return b == kGuardByte; };
    return std::all_of(storage_.data(), data(), is_guard) &&
           std::all_of(data() + bytes_, storage_.data() + storage_.size(), is_guard);
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::byte kGuardByte{0xa5}, kNaNByte{0xff};

  std::size_t bytes_;
  std::vector<std::byte> storage_;
};

// n elements of T between guards.
template <class T>
class GuardedArray {
 public:
  explicit GuardedArray(std::size_t n) : n_(n), bytes_(n * sizeof(T)) {}
  explicit GuardedArray(const std::vector<T>& values) : GuardedArray(values.size()) {
    std::memcpy(bytes_.data(), values.data(), n_ * sizeof(T));
  }

  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  std::span<T> span() { return {data(), n_}; }
  T& operator[](std::size_t i) { return data()[i]; }
  std::size_t size() const { return n_; }
  bool guards_intact() { return bytes_.guards_intact(); }
  std::vector<T> values() { return {data(), data() + n_}; }

 private:
  std::size_t n_;
  GuardedBytes bytes_;
};

}  // namespace spillway::test
