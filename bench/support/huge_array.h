// Memory for arrays of hundreds of MiB, on huge pages where the system has them. Pages belong to whom touches them first.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway::bench {

class HugeArray {
 public:
  // Zeroed when touched. Throws MemoryError.
  explicit HugeArray(std::int64_t bytes);
  ~HugeArray();
  HugeArray(const HugeArray&) = delete;
  HugeArray& operator=(const HugeArray&) = delete;

  // Aligned to 2 MiB.
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void* mapping_;
  std::size_t mapped_bytes_;
  std::byte* data_;
};

}  // namespace spillway::bench
