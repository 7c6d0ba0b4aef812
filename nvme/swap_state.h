// What the channels of one swap store share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "first_failure.h"
#include "path_worker.h"
#include "spillway/swap_store.h"
#include "swap_layout.h"

namespace spillway {

// What is known of an extent's bytes on disk. Not atomic: the caller orders transfers of one extent,
// and that order is what hands a record from the writing channel to the reading one.
struct ExtentRecord {
  enum class Content : std::uint8_t { none, torn, whole } content = Content::none;  // torn: a write failed
  bool rewritten = false;      // before it was whole it was so with other bytes, of this checksum
  std::uint64_t checksum = 0;  // of a whole extent
  std::uint64_t previous_checksum = 0;
};

struct SwapState {
  std::vector<SwapExtent> extents;
  std::vector<ExtentPlace> places;  // of each
  std::vector<ExtentRecord> records;
  bool verify = true;
  FirstFailure failure;
  std::vector<std::unique_ptr<PathWorker>> paths;

  std::atomic<std::int64_t> read_bytes{0};
  std::atomic<std::int64_t> write_bytes{0};
  std::atomic<std::int64_t> checksum_failures{0};

  PathWorker& path_of(int extent) { return *paths[static_cast<std::size_t>(places[static_cast<std::size_t>(extent)].path)]; }
};

}  // namespace spillway
