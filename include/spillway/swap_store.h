// The NVMe tier: on every path one preallocated, unnamed file cut into extents, each written whole, checksummed, and
// verified when read back. Scratch: it does not outlive the process that made it.
//
// One thread a path ("its ring") owns that path's file and I/O engine and takes transfers from all channels: so a
// read that the step waits for overtakes what other lanes have queued, and the depth is the disk's, not each lane's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/io_engine.h"

namespace spillway {

// A folder of the NVMe tier.
struct SwapPath {
  std::string folder;
  double bandwidth = 0.0;  // bytes per second, reads and writes mixed: its share of the extents; 0: measured if there are several paths
};

// One range that is always read and written whole. It lies on one path; which one, the store decides.
struct SwapExtent {
  std::string name;            // for error texts: "tile 12 of block 3"
  std::int64_t bytes;          // multiple of SwapStore::alignment
  std::vector<int> paths = {};  // indices of the paths it may lie on; empty: any
};

struct SwapStoreOptions {
  std::vector<SwapPath> paths;
  std::vector<SwapExtent> extents;
  std::string contents;                // what the header says the files hold, for error texts: "rank 0 of 2, adam f32 moments, bf16 weights"
  IoEngineOptions engine;              // depth 0: depth_for() of what is measured; else so many requests in flight per ring
  std::int64_t block_bytes = 1 << 20;  // most bytes of one I/O request; a multiple of alignment
  int rings = 1;                       // per path, each a thread and an engine (aio.intra_op_parallelism)
  bool single_submit = true;           // each request is submitted by itself: of neighbours in one batch the kernel makes fewer, larger
                                       // requests than were asked for, and the disk is left with less to do at a time
  bool overlap_events = true;          // false: a batch of requests is waited for before the next is submitted
  bool verify = true;                  // check every read against the checksum of the last write
  // Makes the engine of each ring; empty: make_io_engine. The fault tests put failing engines here.
  std::function<std::unique_ptr<IoEngine>(const IoEngineOptions&)> make_engine;
};

// Of what a channel moves, against the other channels. `urgent` goes before everything else: the step stands until it is
// there. The others share a path by credit, so that neither reads nor writes starve: as many bytes of the one as of the other
// while both wait; `background` takes what these leave, but never waits forever.
enum class IoPriority : std::uint8_t { urgent, streaming, background };

// A finished transfer: the caller's tag.
struct SwapCompletion {
  std::uint64_t tag;
};

// One thread's asynchronous access to the store, which outlives it. Obtained from SwapStore::open_channel(); another
// thread may take it over if the caller orders this. Any number of transfers may be in flight at once in any number of
// channels, several reads of one extent included; the caller orders a write and any other transfer of the same extent:
// one begins only after completions() has returned or thrown the other. Checksums are computed on the channel's thread.
class SwapChannel {
 public:
  // Waits for the requests in flight; unfinished transfers are abandoned.
  virtual ~SwapChannel() = default;

  // Starts moving extent `extent` to or from `data` (SwapExtent::bytes, aligned to SwapStore::alignment, the
  // caller's, untouched until completed). Reading an extent that was never written throws IoError. Never blocks for I/O.
  virtual void read(int extent, std::byte* data, std::uint64_t tag) = 0;
  virtual void write(int extent, const std::byte* data, std::uint64_t tag) = 0;

  // Transfers started and not yet returned by completions().
  virtual int in_flight() const = 0;

  // Returns finished transfers, blocking until at least one is finished if `wait` and any is in flight.
  // Short transfers have been continued and checksums verified by then. The span is valid until the
  // next call. Throws one failed transfer's IoError per call, naming the folder, the extent, the errno
  // text or both checksums, and what to do; no other transfer is lost by that.
  virtual std::span<const SwapCompletion> completions(bool wait) = 0;
};

struct SwapCounters {
  std::int64_t read_bytes = 0;
  std::int64_t write_bytes = 0;
  std::int64_t checksum_failures = 0;
};

// How long requests (blocks) took from submission to completion.
struct IoLatency {
  std::int64_t count = 0;
  double p50_s = 0.0;  // percentiles within 6 %: a histogram of logarithmic bins
  double p99_s = 0.0;
  double max_s = 0.0;
  std::vector<std::int64_t> bins = {};  // what the percentiles are read from, for since()
};

// One path, since the store was made, or since another look at it.
struct SwapPathHealth {
  std::string folder;
  std::string file_system;         // "ext4"
  std::string engine;              // "io_uring"
  bool buffered = false;           // the file system refused O_DIRECT: the page cache is in between
  int depth = 0;                   // requests in flight at most, over its rings
  std::int64_t block_bytes = 0;
  std::int64_t file_bytes = 0;     // extents that lie here, and the header
  std::int64_t read_bytes = 0;
  std::int64_t write_bytes = 0;
  double busy_s = 0.0;             // with at least one request in flight
  IoLatency read_latency;
  IoLatency write_latency;
  std::int64_t retries = 0;        // requests that were interrupted, short or refused for the moment, and tried again
  std::int64_t checksum_failures = 0;

  double bytes_per_s() const { return busy_s > 0.0 ? static_cast<double>(read_bytes + write_bytes) / busy_s : 0.0; }
};

// What happened on a path between two looks at it: `before`, then `now`. The longest latency is within 6 %, too, unless it
// is the longest of all.
SwapPathHealth since(const SwapPathHealth& before, const SwapPathHealth& now);

class SwapStore {
 public:
  static constexpr std::int64_t alignment = 4096;

  virtual ~SwapStore() = default;

  virtual std::unique_ptr<SwapChannel> open_channel(IoPriority priority) = 0;

  // Sums over all channels and paths so far. Thread-safe.
  virtual SwapCounters counters() const = 0;

  // Path by path, in the order of SwapStoreOptions::paths. Thread-safe, never blocks a ring.
  virtual std::vector<SwapPathHealth> health() const = 0;

  virtual std::string_view engine_name() const = 0;

  // True if a file system refused O_DIRECT and the page cache is in between.
  virtual bool buffered() const = 0;

  // The path an extent lies on.
  virtual int path_of(int extent) const = 0;

  // Flips one bit of an extent's bytes on disk. For the fault tests only.
  virtual void corrupt_for_test(int extent, std::int64_t byte, int bit) = 0;
};

// Makes a file without a name on each path and allocates every byte of it. Throws IoError: folder missing or not
// writable, or no space (with bytes needed and free).
std::unique_ptr<SwapStore> make_swap_store(SwapStoreOptions options);

// Bytes free for an unprivileged user under `folder`. Throws IoError if it does not exist.
std::int64_t free_bytes(const std::string& folder);

}  // namespace spillway
