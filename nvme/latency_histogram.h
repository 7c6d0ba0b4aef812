// How long requests take: counts in logarithmic bins, added by any thread without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "spillway/swap_store.h"

namespace spillway {

constexpr int kBinsPerOctave = 8;

// Of so many requests in each bin, none of which took longer than max_s. Percentiles are the middles of their bins, which
// are no wider than an eighth of where they begin.
IoLatency latency_of(std::vector<std::int64_t> bins, double max_s);

class LatencyHistogram {
 public:
  void add(std::int64_t ns);

  IoLatency summary() const;

 private:
  static constexpr int kOctaves = 41;  // up to half an hour

  static std::size_t bin_of(std::int64_t ns);

  std::array<std::atomic<std::int64_t>, kBinsPerOctave * kOctaves> bins_{};
  std::atomic<std::int64_t> max_ns_{0};
};

}  // namespace spillway
