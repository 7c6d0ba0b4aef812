// Tiles between memory and the NVMe tier, through the trainer's store, by two threads as its NVMe lanes are: in order, several
// in flight, and in a ring of places in memory. Nothing is computed but the store's checksums.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "spillway/device.h"
#include "spillway/swap_store.h"

namespace spillway::bench {

struct TileTrafficSetup {
  std::string folder;            // of the swap file
  std::int64_t bytes = 0;        // as many whole tiles as that holds
  std::int64_t tile_bytes = 0;
  std::int64_t block_bytes = 0;  // of a request; 0: as in the trainer by default
  int depth = 0;                 // requests in flight; 0: likewise
};

// mixed: as in a step, each tile read is written back while later ones are read.
enum class TilePattern : std::uint8_t { read, write, mixed };

struct Moved {
  std::int64_t bytes = 0;  // read and written
  double seconds = 0.0;    // until the last tile had arrived
};

class TileTraffic {
 public:
  // Makes the file and writes all of it once: no first write of a block is ever timed.
  explicit TileTraffic(const TileTrafficSetup& setup);
  ~TileTraffic();
  TileTraffic(const TileTraffic&) = delete;
  TileTraffic& operator=(const TileTraffic&) = delete;

  // Tile after tile, from the first of the other half of the file than in the call before; the last is started before `seconds`
  // are over.
  Moved move(TilePattern pattern, double seconds) { return move(pattern, seconds, 1); }

  // Writes all tiles anew, which somebody else has written over.
  void restore() { move(TilePattern::write, 0.0, tiles_); }

  // How the store does it: engine, depth, size of a request.
  SwapPathHealth health() const { return store_->health().front(); }

  // Where others can open the swap file, which has no name; and where in it the tiles begin.
  std::string file() const;
  std::int64_t begin() const { return health().file_bytes - tiles_ * tile_bytes_; }

 private:
  class Turn;

  Moved move(TilePattern pattern, double seconds, std::int64_t fewest);

  std::unique_ptr<Device> device_;  // owns the memory
  std::byte* memory_;
  std::int64_t tile_bytes_;
  std::int64_t tiles_;
  std::unique_ptr<SwapStore> store_;
  std::unique_ptr<SwapChannel> reads_, writes_;
  std::int64_t next_ = 0;  // tile to begin with
};

}  // namespace spillway::bench
