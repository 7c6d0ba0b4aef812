// Tiles between memory and the NVMe tier, through the trainer's store, by two threads as its NVMe lanes are: in order, several
// in flight, and in a ring of places in memory. Nothing is computed but the store's checksums.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "spillway/device.h"
#include "spillway/swap_store.h"

namespace spillway::bench {

struct TileTrafficSetup {
  std::string folder;         // of the swap file
  std::int64_t bytes = 0;     // of the file: as many whole tiles as that holds
  std::int64_t tile_bytes = 0;
  std::int64_t block_bytes = 0;  // of a request
  int depth = 0;              // requests in flight
  std::string engine;         // "io_uring"
};

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

  // Tile after tile, each from where the call before stopped; the last is started before `seconds` are over.
  Moved read(double seconds);
  Moved write(double seconds);
  // As a step does: each tile read is written back, while later ones are read.
  Moved read_and_write(double seconds);

  // The name of the engine in use.
  std::string_view engine_name() const { return store_->engine_name(); }

 private:
  class Turn;

  Moved run(bool reads, bool writes, double seconds, std::int64_t fewest);

  std::unique_ptr<Device> device_;  // owns the memory
  std::byte* memory_;
  std::int64_t tile_bytes_;
  std::int64_t tiles_;
  std::unique_ptr<SwapStore> store_;
  std::unique_ptr<SwapChannel> reads_, writes_;
  std::int64_t next_ = 0;  // tile, counted on and on
};

}  // namespace spillway::bench
