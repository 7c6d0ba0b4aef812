// Where the buffers of a plan are in this process: an arena a tier, offsets from the plan.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "spillway/plan.h"

namespace spillway {

class PlanMemory {
 public:
  // Arenas of at least TierUse::peak bytes of the device and host tier; borrowed.
  PlanMemory(const Plan& plan, std::byte* device, std::byte* host) : plan_(plan), arenas_{device, host} {}

  std::byte* at(int buffer) const {
    const Buffer& b = plan_.buffers[static_cast<std::size_t>(buffer)];
    return arenas_[static_cast<std::size_t>(b.tier)] + b.offset;
  }

  // All that the plan uses of the host tier.
  std::span<std::byte> host() const {
    constexpr auto tier = static_cast<std::size_t>(Tier::host);
    return {arenas_[tier], static_cast<std::size_t>(plan_.tiers[tier].peak)};
  }

  std::span<std::byte> bytes(const Access& access) const {
    return {at(access.buffer) + access.begin, static_cast<std::size_t>(access.end - access.begin)};
  }

  // Notes that the bytes of a buffer up to `end` are really used. Thread-safe.
  void note_use(int buffer, std::int64_t end) {
    const Buffer& b = plan_.buffers[static_cast<std::size_t>(buffer)];
    std::atomic<std::int64_t>& high = high_water_[static_cast<std::size_t>(b.tier)];
    const std::int64_t unit = alignment_of(b.tier), top = (b.offset + end + unit - 1) / unit * unit;
    std::int64_t seen = high.load(std::memory_order_relaxed);
    while (seen < top && !high.compare_exchange_weak(seen, top, std::memory_order_relaxed)) {
    }
  }

  void note_use(const Task& task) {
    for (const Access& access : task.accesses) note_use(access.buffer, access.end);
  }

  // The highest byte in use so far, in whole units of alignment_of(tier).
  std::int64_t high_water(Tier tier) const { return high_water_[static_cast<std::size_t>(tier)].load(std::memory_order_relaxed); }

 private:
  const Plan& plan_;
  std::array<std::byte*, 2> arenas_;
  std::array<std::atomic<std::int64_t>, kTiers> high_water_{};
};

// The access of a task with a role; nullptr if it has none.
inline const Access* find_access(const Task& task, Role role) {
  const auto it = std::find_if(task.accesses.begin(), task.accesses.end(), [role](const Access& a) { return a.role == role; });
  return it == task.accesses.end() ? nullptr : &*it;
}

}  // namespace spillway
