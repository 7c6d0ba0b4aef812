// The memory that a device's copies may touch: its arenas, and host memory that CUDA has registered. A copy from or to
// anything else would not be asynchronous, or not be at all.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace spillway::cuda {

enum class Place : std::uint8_t { device, pinned };

// A stretch of one allocation or one registration. CUDA copies from one of them to one of them.
struct Region {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  Place place = Place::device;
};

// Grows by one thread at a time; read by any.
class MemoryMap {
 public:
  // Throws DeviceError when there are more than anybody needs.
  void add(const void* begin, std::int64_t bytes, Place place);

  // The region that holds this byte, or nullptr.
  const Region* find(const void* address) const;

 private:
  std::array<Region, 256> regions_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace spillway::cuda
