#include "runtime/measure_comm.h"

#include <algorithm>
#include <vector>

namespace spillway {

namespace {

constexpr int kRepetitions = 5;
constexpr std::int64_t kSmallBytes = 64, kLargeBytes = 16 << 20;  // gathered, of all ranks together

double slowest(Communicator& ranks, double mine) {
  std::vector<double> all(static_cast<std::size_t>(ranks.size()));
  ranks.exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return *std::max_element(all.begin(), all.end());
}

// Median seconds of an all-gather of `bytes` a rank. The first one, in which connections are made, is not counted.
double gather_seconds(Communicator& ranks, Device& device, Stream& stream, std::byte* buffer, std::int64_t bytes) {
  std::vector<Part> parts;
  for (int r = 0; r < ranks.size(); ++r) parts.push_back({r * bytes, bytes});
  std::vector<double> seconds;
  for (int i = 0; i <= kRepetitions; ++i) {
    ranks.barrier();
    const std::int64_t start = device.now_ns();
    ranks.all_gather(stream, buffer, parts);
    stream.synchronize();
    if (i > 0) seconds.push_back(static_cast<double>(std::max<std::int64_t>(1, device.now_ns() - start)) * 1e-9);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRepetitions / 2, seconds.end());
  return slowest(ranks, seconds[kRepetitions / 2]);
}

}  // namespace

CommRates measure_comm_rates(Communicator& ranks, Device& device) {
  if (ranks.size() == 1) return {0.0, 0.0};
  const std::int64_t small = std::max<std::int64_t>(1, kSmallBytes / ranks.size()), large = std::max<std::int64_t>(small + 1, kLargeBytes / ranks.size());
  // What the ranks exchange in a step is in the device's memory, if it has some of its own.
  std::byte* buffer = device.free_memory() ? device.allocate_arena(large * ranks.size()) : device.allocate_pinned(large * ranks.size());
  const std::unique_ptr<Stream> stream = device.make_stream("rates of collectives");
  const double latency = gather_seconds(ranks, device, *stream, buffer, small);
  const double seconds = gather_seconds(ranks, device, *stream, buffer, large);
  // What the larger one takes longer is its bytes; noise must not make that nothing.
  const double moving = std::max(seconds - latency, 0.1 * seconds);
  return {static_cast<double>((large - small) * (ranks.size() - 1)) / moving, latency};
}

}  // namespace spillway
