// Carries beats through shared memory: a box for each pair of ranks, that one fills and the other empties.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/watchdog.h"

namespace spillway::comm {

class SharedBeats final : public BeatLink {
 public:
  static std::int64_t bytes_needed(int ranks) { return std::int64_t{ranks} * ranks * std::int64_t{sizeof(Box)}; }

  // `memory` was zero when the first rank came to it.
  SharedBeats(std::byte* memory, int rank, int ranks) : boxes_(reinterpret_cast<Box*>(memory)), rank_(rank), ranks_(ranks) {}

  bool send(int to, const Beat& beat) override {
    Box& box = box_of(rank_, to);
    if (box.full.load(std::memory_order_acquire) != 0) return false;
    box.beat = beat;
    box.full.store(1, std::memory_order_release);
    return true;
  }

  std::optional<int> receive(Beat& beat) override {
    for (int i = 0; i < ranks_; ++i) {
      next_ = (next_ + 1) % ranks_;  // nobody is heard less than others
      Box& box = box_of(next_, rank_);
      if (box.full.load(std::memory_order_acquire) == 0) continue;
      beat = box.beat;
      box.full.store(0, std::memory_order_release);
      return next_;
    }
    return std::nullopt;
  }

 private:
  struct alignas(64) Box {
    std::atomic<std::uint32_t> full;
    Beat beat;
  };

  Box& box_of(int from, int to) const { return boxes_[from * ranks_ + to]; }

  Box* const boxes_;
  const int rank_, ranks_;
  int next_ = 0;
};

}  // namespace spillway::comm
