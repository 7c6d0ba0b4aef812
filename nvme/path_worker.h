// A folder of the NVMe tier at work: its file, its rings, and what they have done.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "path_activity.h"
#include "path_ring.h"
#include "spillway/swap_store.h"
#include "swap_file.h"
#include "swap_header.h"

namespace spillway {

class PathWorker {
 public:
  // Allocates `bytes` in the file and writes its header. Throws IoError.
  PathWorker(SwapFile file, SwapIdentity identity, std::span<const PlacedExtent> table, std::int64_t bytes);

  // Starts `rings` of them. Throws IoError.
  void start(PathRingOptions options, int rings, FirstFailure& failure);

  // To the ring with the least to do.
  void push(RingTransfer& transfer);
  void drop_closed();

  // What is in the file's header now, and an errno if it cannot be read: of a file that is another's, and of a disk that
  // is gone. Blocks.
  struct Found {
    int error = 0;
    std::optional<SwapIdentity> identity;
  };
  Found look_at_header() const;

  SwapPathHealth health() const;

  const SwapFile& file() const { return file_; }
  const SwapIdentity& identity() const { return identity_; }
  PathActivity& activity() { return activity_; }
  std::string_view engine_name() const { return rings_.front()->engine_name(); }
  std::string engine_failure() const;

 private:
  SwapFile file_;
  SwapIdentity identity_;
  std::int64_t block_bytes_ = 0;
  PathActivity activity_;
  std::vector<std::unique_ptr<PathRing>> rings_;  // last, so that they end first
};

}  // namespace spillway
