// How long requests take: counts in logarithmic bins, added by any thread without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "spillway/swap_store.h"

namespace spillway {

class LatencyHistogram {
 public:
  void add(std::int64_t ns);

  // Percentiles are the middles of their bins, which are no wider than an eighth of where they begin.
  IoLatency summary() const;

 private:
  static constexpr int kBinsPerOctave = 8;
  static constexpr int kOctaves = 41;  // up to half an hour

  static std::size_t bin_of(std::int64_t ns);
  static double middle_ns(std::size_t bin);

  std::array<std::atomic<std::int64_t>, kBinsPerOctave * kOctaves> bins_{};
  std::atomic<std::int64_t> max_ns_{0};
};

}  // namespace spillway
