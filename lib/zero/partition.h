// Pure arithmetic of ZeRO: how a flat buffer of n elements is cut over ranks and into tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "spillway/model.h"

namespace spillway {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// Elements of every rank's shard: n padded so that the world divides it into multiples of `granule`. The padding is
// never stored.
constexpr std::int64_t padded_shard_size(std::int64_t n, std::int64_t world, std::int64_t granule = 1) {
  return round_up(ceil_div(n, world), granule);
}

// The contiguous part of [0, n) that `rank` of `world` owns; empty for trailing ranks of small buffers.
constexpr ElementRange shard_range(std::int64_t n, std::int64_t rank, std::int64_t world, std::int64_t granule = 1) {
  const std::int64_t size = padded_shard_size(n, world, granule);
  return {std::min(n, rank * size), std::min(n, (rank + 1) * size)};
}

// How the ranks of a world share one flat buffer. Ranks fall into groups of `partition` consecutive ones: each group
// holds all of the buffer, one shard a rank; the groups are replicas of each other. Gradients are reduced over the
// whole world: of the shard that the ranks of equal position in their groups hold in common, each reduces a slice.
struct Partition {
  std::int64_t world = 1;
  std::int64_t partition = 1;  // ranks of a group; divides world
  std::int64_t granule = 1;    // shards are cut at its multiples only

  std::int64_t replicas() const { return world / partition; }

  ElementRange shard(std::int64_t n, std::int64_t rank) const { return shard_range(n, rank % partition, partition, granule); }

  ElementRange slice(std::int64_t n, std::int64_t rank) const {
    const ElementRange whole = shard(n, rank);
    const ElementRange part = shard_range(whole.size(), rank / partition, replicas());
    return {whole.begin + part.begin, whole.begin + part.end};
  }
};

// Tiles of a shard: all of `tile_size` but the last.
constexpr std::int64_t num_tiles(std::int64_t shard_size, std::int64_t tile_size) { return ceil_div(shard_size, tile_size); }

constexpr ElementRange tile_range(std::int64_t shard_size, std::int64_t tile_size, std::int64_t tile) {
  return {tile * tile_size, std::min(shard_size, (tile + 1) * tile_size)};
}

}  // namespace spillway
