#include "cuda_sim/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "cuda_sim/runtime_state.h"

namespace cuda_sim {

namespace {

// More makes ThreadSanitizer's own mappings fail at random.
constexpr std::size_t kSpaceBytes = std::size_t{64} << 30;
constexpr std::size_t kAlignment = 256;  // of cudaMalloc

struct Region {
  DeviceAllocation allocation;
  std::byte* begin;  // whole pages
  std::size_t bytes;
};

struct Space {
  std::byte* begin = nullptr;
  std::byte* next = nullptr;
  std::map<const std::byte*, Region> regions;  // live, by the allocation's begin
  int accesses = 0;
  bool accessible = true;
};

Space& space() {
  static Space* const instance = [] {
    auto* made = new Space;
    void* const memory = mmap(nullptr, kSpaceBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) violation("no address space for the memory of simulated devices");
    made->begin = made->next = static_cast<std::byte*>(memory);
    return made;
  }();
  return *instance;
}

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

void set_access(const Region& region, bool accessible) {
  if (mprotect(region.begin, region.bytes, accessible ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
    violation("mprotect of %zu bytes of device memory failed", region.bytes);
  }
}

}  // namespace

std::byte* allocate_device(int device, std::size_t bytes) {
  Space& s = space();
  const std::size_t padded = round_up(bytes, kAlignment), region_bytes = round_up(padded, page_bytes());
  if (s.next + region_bytes + page_bytes() > s.begin + kSpaceBytes) return nullptr;
  // The allocation ends where its pages end; the page behind stays inaccessible.
  std::byte* const begin = s.next + region_bytes - padded;
  const Region region{{begin, bytes, device}, s.next, region_bytes};
  s.next += region_bytes + page_bytes();
  set_access(region, true);
  std::memset(begin, 0xff, bytes);
  poison(region.begin, static_cast<std::size_t>(begin - region.begin));
  poison(begin + bytes, padded - bytes);
  s.regions.emplace(begin, region);
  set_access(region, s.accessible);
  return begin;
}

void free_device(std::byte* begin) {
  Space& s = space();
  const auto found = s.regions.find(begin);
  const Region region = found->second;
  s.regions.erase(found);
  poison(region.begin, region.bytes);
  // Gives the pages back, too.
  if (mmap(region.begin, region.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    violation("unmapping %zu bytes of device memory failed", region.bytes);
  }
}

bool in_device_space(const void* p) {
  const auto* const address = static_cast<const std::byte*>(p);
  return address >= space().begin && address < space().begin + kSpaceBytes;
}

const DeviceAllocation* find_device(const void* p) {
  const auto* const address = static_cast<const std::byte*>(p);
  auto next = space().regions.upper_bound(address);
  if (next == space().regions.begin()) return nullptr;
  const DeviceAllocation& candidate = (--next)->second.allocation;
  return address < candidate.begin + candidate.bytes ? &candidate : nullptr;
}

std::int64_t device_bytes_used(int device) {
  std::int64_t used = 0;
  for (const auto& [begin, region] : space().regions) {
    if (region.allocation.device == device) used += static_cast<std::int64_t>(round_up(region.allocation.bytes, kAlignment));
  }
  return used;
}

void update_protection() {
  Space& s = space();
  const bool accessible = !state().settings.protect || s.accesses > 0;
  if (accessible == s.accessible) return;
  s.accessible = accessible;
  for (const auto& [begin, region] : s.regions) set_access(region, accessible);
}

bool is_device_range(const void* p, std::size_t bytes) {
  const StateLock lock(state().lock);
  if (!in_device_space(p)) return false;
  const DeviceAllocation* const found = find_device(p);
  if (found == nullptr) violation("device memory at %p is used after it was freed", p);
  return static_cast<const std::byte*>(p) + bytes <= found->begin + found->bytes;
}

DeviceAccess::DeviceAccess() {
  const Unseen unseen;
  const StateLock lock(state().lock);
  ++space().accesses;
  update_protection();
}

DeviceAccess::~DeviceAccess() {
  const Unseen unseen;
  const StateLock lock(state().lock);
  --space().accesses;
  update_protection();
}

}  // namespace cuda_sim
