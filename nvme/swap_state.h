// What the channels of one swap store share.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "spillway/swap_store.h"
#include "swap_file.h"

namespace spillway {

// What is known of an extent's bytes on disk. Not atomic: the caller orders transfers of one extent,
// and that order is what hands a record from the writing channel to the reading one.
struct ExtentRecord {
  enum class Content : std::uint8_t { none, torn, whole } content = Content::none;  // torn: a write failed
  std::uint64_t checksum = 0;                                                      // of a whole extent
};

struct SwapState {
  SwapState(const SwapStoreOptions& options)
      : file(options.folder, options.bytes),
        extents(options.extents),
        records(options.extents.size()),
        block_bytes(options.block_bytes),
        verify(options.verify) {}

  SwapFile file;
  const std::vector<SwapExtent> extents;
  std::vector<ExtentRecord> records;
  const std::int64_t block_bytes;
  const bool verify;

  std::atomic<std::int64_t> read_bytes{0};
  std::atomic<std::int64_t> write_bytes{0};
  std::atomic<std::int64_t> checksum_failures{0};
};

}  // namespace spillway
