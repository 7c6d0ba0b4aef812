// Pure arithmetic of ZeRO: how a flat buffer of n elements is cut over ranks and into tiles.
#pragma once

#include <algorithm>
#include <cstdint>

namespace spillway {

struct ElementRange {
  std::int64_t begin;
  std::int64_t end;

  std::int64_t size() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// Elements of every rank's shard: n padded so that the world divides it. The padding is never stored.
constexpr std::int64_t padded_shard_size(std::int64_t n, std::int64_t world) { return ceil_div(n, world); }

// The contiguous part of [0, n) that `rank` of `world` owns; empty for trailing ranks of small buffers.
constexpr ElementRange shard_range(std::int64_t n, std::int64_t rank, std::int64_t world) {
  const std::int64_t size = padded_shard_size(n, world);
  return {std::min(n, rank * size), std::min(n, (rank + 1) * size)};
}

// Tiles of a shard: all of `tile_size` but the last.
constexpr std::int64_t num_tiles(std::int64_t shard_size, std::int64_t tile_size) { return ceil_div(shard_size, tile_size); }

constexpr ElementRange tile_range(std::int64_t shard_size, std::int64_t tile_size, std::int64_t tile) {
  return {tile * tile_size, std::min(shard_size, (tile + 1) * tile_size)};
}

}  // namespace spillway
