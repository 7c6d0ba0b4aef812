// What a path has done so far, counted by its rings and channels and looked at by anyone.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "latency_histogram.h"

namespace spillway {

// The time with at least one ring at work.
class BusyClock {
 public:
  void begin(std::int64_t now_ns);
  void end(std::int64_t now_ns);
  std::int64_t busy_ns(std::int64_t now_ns) const;

 private:
  mutable std::mutex mutex_;  // held for a few instructions, when a ring falls idle or ceases to be
  int working_ = 0;
  std::int64_t since_ns_ = 0;
  std::int64_t sum_ns_ = 0;
};

struct PathActivity {
  std::atomic<std::int64_t> read_bytes{0};
  std::atomic<std::int64_t> write_bytes{0};
  std::atomic<std::int64_t> retries{0};
  std::atomic<std::int64_t> checksum_failures{0};
  LatencyHistogram read_latency;
  LatencyHistogram write_latency;
  BusyClock busy;
};

// Of a clock that never goes back.
std::int64_t monotonic_ns();

}  // namespace spillway
