#include "latency_histogram.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace spillway {

namespace {

double middle_s(std::size_t bin) {
  if (bin < kBinsPerOctave) return static_cast<double>(bin) * 1e-9;
  const auto width = static_cast<double>(std::uint64_t{1} << (bin / kBinsPerOctave - 1));
  return (static_cast<double>(kBinsPerOctave + bin % kBinsPerOctave) + 0.5) * width * 1e-9;
}

// The smallest that so many percent are no larger than.
double percentile(const IoLatency& latency, std::int64_t percent) {
  const std::int64_t rank = (latency.count * percent + 99) / 100;
  std::int64_t below = 0;
  for (std::size_t bin = 0; bin < latency.bins.size(); ++bin) {
    below += latency.bins[bin];
    if (latency.bins[bin] > 0 && below >= rank) return std::min(middle_s(bin), latency.max_s);
  }
  return 0.0;
}

// The middle of the last bin that has any.
double longest_s(const std::vector<std::int64_t>& bins) {
  const auto last = std::find_if(bins.rbegin(), bins.rend(), [](std::int64_t count) { return count > 0; });
  return last == bins.rend() ? 0.0 : middle_s(static_cast<std::size_t>(bins.rend() - last) - 1);
}

IoLatency since(const IoLatency& before, const IoLatency& now) {
  std::vector<std::int64_t> bins = now.bins;
  for (std::size_t bin = 0; bin < std::min(bins.size(), before.bins.size()); ++bin) bins[bin] -= before.bins[bin];
  const double max_s = now.max_s > before.max_s ? now.max_s : std::min(now.max_s, longest_s(bins));
  return latency_of(std::move(bins), max_s);
}

}  // namespace

// Below 8 ns a bin a nanosecond; from there on eight to each doubling, told by the three bits below the highest.
std::size_t LatencyHistogram::bin_of(std::int64_t ns) {
  const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0));
  if (value < kBinsPerOctave) return value;
  const int shift = std::bit_width(value) - 4;
  const std::size_t bin = static_cast<std::size_t>(shift + 1) * kBinsPerOctave + (value >> shift) % kBinsPerOctave;
  return std::min<std::size_t>(bin, kBinsPerOctave * kOctaves - 1);
}

void LatencyHistogram::add(std::int64_t ns) {
  bins_[bin_of(ns)].fetch_add(1, std::memory_order_relaxed);
  std::int64_t max = max_ns_.load(std::memory_order_relaxed);
  while (ns > max && !max_ns_.compare_exchange_weak(max, ns, std::memory_order_relaxed)) {
  }
}

IoLatency LatencyHistogram::summary() const {
  std::vector<std::int64_t> counts(bins_.size());
  for (std::size_t bin = 0; bin < counts.size(); ++bin) counts[bin] = bins_[bin].load(std::memory_order_relaxed);
  return latency_of(std::move(counts), static_cast<double>(max_ns_.load(std::memory_order_relaxed)) * 1e-9);
}

IoLatency latency_of(std::vector<std::int64_t> bins, double max_s) {
  IoLatency latency;
  for (const std::int64_t count : bins) latency.count += count;
  latency.max_s = max_s;
  latency.bins = std::move(bins);
  latency.p50_s = percentile(latency, 50);
  latency.p99_s = percentile(latency, 99);
  return latency;
}

SwapPathHealth since(const SwapPathHealth& before, const SwapPathHealth& now) {
  SwapPathHealth between = now;
  between.read_bytes -= before.read_bytes;
  between.write_bytes -= before.write_bytes;
  between.busy_s -= before.busy_s;
  between.read_latency = since(before.read_latency, now.read_latency);
  between.write_latency = since(before.write_latency, now.write_latency);
  between.retries -= before.retries;
  between.checksum_failures -= before.checksum_failures;
  return between;
}

}  // namespace spillway
