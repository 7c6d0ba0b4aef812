// The NVMe tier: one preallocated, unnamed file cut into extents, each written whole, checksummed, and
// verified when read back. Scratch: it does not outlive the process that made it.
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

// One range of the file that is always read and written whole.
struct SwapExtent {
  std::string name;      // for error texts: "tile 12 of block 3"
  std::int64_t offset;   // multiple of SwapStore::alignment
  std::int64_t bytes;    // multiple of SwapStore::alignment
};

struct SwapStoreOptions {
  std::string folder;
  std::int64_t bytes = 0;          // size of the file, preallocated
  std::vector<SwapExtent> extents;  // disjoint, within `bytes`
  IoEngineOptions engine;
  std::int64_t block_bytes = 1 << 20;  // size of one I/O request; a multiple of alignment
  bool verify = true;              // check every read against the checksum of the last write
  // Makes the engine of each channel (and one at start, to learn its name); empty: make_io_engine.
  // The fault tests put failing engines here.
  std::function<std::unique_ptr<IoEngine>(const IoEngineOptions&)> make_engine;
};

// How much a channel will move. Only for one that moves something every step is it worth it to register
// IoEngineOptions::memory.
enum class ChannelUse : std::uint8_t { occasional, every_step };

// A finished transfer: the caller's tag.
struct SwapCompletion {
  std::uint64_t tag;
};

// One thread's asynchronous access to the store, which outlives it. Obtained from
// SwapStore::open_channel(); another thread may take it over if the caller orders this. Any number
// of transfers may be in flight at once in any number of channels, several reads of one extent included;
// the caller orders a write and any other transfer of the same extent: one begins only after completions()
// has returned or thrown the other.
class SwapChannel {
 public:
  // Waits for the requests in flight; unfinished transfers are abandoned.
  virtual ~SwapChannel() = default;

  // Starts moving extent `extent` to or from `data` (SwapExtent::bytes, aligned to
  // SwapStore::alignment, the caller's, untouched until completed). Reading an extent that was never
  // written throws IoError. Both block only while the queue is full.
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

class SwapStore {
 public:
  static constexpr std::int64_t alignment = 4096;

  virtual ~SwapStore() = default;

  virtual std::unique_ptr<SwapChannel> open_channel(ChannelUse use) = 0;
  std::unique_ptr<SwapChannel> open_channel() { return open_channel(ChannelUse::occasional); }

  // Sums over all channels so far. Thread-safe.
  virtual SwapCounters counters() const = 0;

  virtual std::string_view engine_name() const = 0;

  // True if the file system refused O_DIRECT and the page cache is in between.
  virtual bool buffered() const = 0;

  // Flips one bit of an extent's bytes on disk. For the fault tests only.
  virtual void corrupt_for_test(int extent, std::int64_t byte, int bit) = 0;
};

// Makes the file without a name (O_TMPFILE, else made and unlinked at once) and allocates every byte of
// it. Throws IoError: folder missing or not writable, or no space (with bytes needed and free).
std::unique_ptr<SwapStore> make_swap_store(SwapStoreOptions options);

// Bytes free for an unprivileged user under `folder`. Throws IoError if it does not exist.
std::int64_t free_bytes(const std::string& folder);

}  // namespace spillway
