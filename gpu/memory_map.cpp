#include "gpu/memory_map.h"

#include <string>

#include "spillway/error.h"

namespace spillway::cuda {

void MemoryMap::add(const void* begin, std::int64_t bytes, Place place) {
  const std::size_t count = count_.load(std::memory_order_relaxed);
  if (count == regions_.size())
    throw DeviceError("[cuda] keep account of memory: more than " + std::to_string(count) + " allocations and registrations of one device");
  const auto* first = static_cast<const std::byte*>(begin);
  regions_[count] = {first, first + bytes, place};
  count_.store(count + 1, std::memory_order_release);
}

const Region* MemoryMap::find(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  const std::size_t count = count_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    const Region& region = regions_[i];
    if (byte >= region.begin && byte < region.end) return &region;
  }
  return nullptr;
}

}  // namespace spillway::cuda
