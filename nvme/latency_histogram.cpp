#include "latency_histogram.h"

#include <algorithm>
#include <bit>

namespace spillway {

// Below 8 ns a bin a nanosecond; from there on eight to each doubling, told by the three bits below the highest.
std::size_t LatencyHistogram::bin_of(std::int64_t ns) {
  const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0));
  if (value < kBinsPerOctave) return value;
  const int shift = std::bit_width(value) - 4;
  const std::size_t bin = static_cast<std::size_t>(shift + 1) * kBinsPerOctave + (value >> shift) % kBinsPerOctave;
  return std::min<std::size_t>(bin, kBinsPerOctave * kOctaves - 1);
}

double LatencyHistogram::middle_ns(std::size_t bin) {
  if (bin < kBinsPerOctave) return static_cast<double>(bin);
  const auto width = static_cast<double>(std::uint64_t{1} << (bin / kBinsPerOctave - 1));
  return (static_cast<double>(kBinsPerOctave + bin % kBinsPerOctave) + 0.5) * width;
}

void LatencyHistogram::add(std::int64_t ns) {
  bins_[bin_of(ns)].fetch_add(1, std::memory_order_relaxed);
  std::int64_t max = max_ns_.load(std::memory_order_relaxed);
  while (ns > max && !max_ns_.compare_exchange_weak(max, ns, std::memory_order_relaxed)) {
  }
}

IoLatency LatencyHistogram::summary() const {
  std::array<std::int64_t, kBinsPerOctave * kOctaves> counts;
  IoLatency latency;
  for (std::size_t bin = 0; bin < counts.size(); ++bin) latency.count += counts[bin] = bins_[bin].load(std::memory_order_relaxed);
  latency.max_s = static_cast<double>(max_ns_.load(std::memory_order_relaxed)) * 1e-9;
  const auto percentile = [&](std::int64_t percent) {
    const std::int64_t rank = (latency.count * percent + 99) / 100;  // the smallest that so many are no larger than
    std::int64_t below = 0;
    for (std::size_t bin = 0; bin < counts.size(); ++bin) {
      below += counts[bin];
      if (counts[bin] > 0 && below >= rank) return std::min(middle_ns(bin) * 1e-9, latency.max_s);
    }
    return 0.0;
  };
  latency.p50_s = percentile(50);
  latency.p99_s = percentile(99);
  return latency;
}

}  // namespace spillway
