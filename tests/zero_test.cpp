// Shards and tiles cover a flat buffer once, whatever its size.
#include "zero/partition.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

// Sizes around every border, and random ones.
std::vector<std::int64_t> sizes() {
  std::vector<std::int64_t> result{0, 1, 2, 511, 512, 513, 4095, 4096, 4097};
  std::mt19937_64 random(20261202);
  for (int i = 0; i < 200; ++i) result.push_back(std::uniform_int_distribution<std::int64_t>(1, 1 << 20)(random));
  result.push_back(std::int64_t{1} << 40);  // no 32-bit arithmetic anywhere
  return result;
}

TEST(Partition, ShardsFollowEachOtherAndCoverEverythingOnce) {
  for (const std::int64_t n : sizes()) {
    for (const std::int64_t world : {1, 2, 3, 4, 7, 8, 64}) {
      std::int64_t end = 0;
      for (std::int64_t rank = 0; rank < world; ++rank) {
        const ElementRange shard = shard_range(n, rank, world);
        ASSERT_EQ(shard.begin, end) << n << " over " << world << ", rank " << rank;
        ASSERT_GE(shard.size(), 0);
        ASSERT_LE(shard.size(), padded_shard_size(n, world));
        end = shard.end;
      }
      ASSERT_EQ(end, n) << n << " over " << world;
    }
  }
}

TEST(Partition, PaddingIsLessThanOneElementARank) {
  for (const std::int64_t n : sizes()) {
    for (const std::int64_t world : {1, 2, 3, 4, 7, 8, 64}) {
      const std::int64_t padding = padded_shard_size(n, world) * world - n;
      EXPECT_GE(padding, 0);
      EXPECT_LT(padding, world);
      EXPECT_EQ(shard_range(n, 0, world).size(), padded_shard_size(n, world)) << "the first rank is full";
    }
  }
}

TEST(Partition, ShardsAreCutAtMultiplesOfTheGranuleOnly) {
  for (const std::int64_t n : sizes()) {
    for (const std::int64_t world : {1, 2, 3, 7, 8}) {
      std::int64_t end = 0;
      for (std::int64_t rank = 0; rank < world; ++rank) {
        const ElementRange shard = Partition{world, world, 256}.shard(n, rank);
        ASSERT_EQ(shard.begin, end) << n << " over " << world << ", rank " << rank;
        ASSERT_TRUE(shard.begin % 256 == 0 || shard.empty());
        ASSERT_LE(shard.size(), Partition({world, world, 256}).shard(n, 0).size()) << "no rank has more than the first";
        end = shard.end;
      }
      ASSERT_EQ(end, n) << n << " over " << world;
    }
  }
  EXPECT_EQ((Partition{3, 3, 256}.shard(1000, 1)), (ElementRange{512, 1000}));
  EXPECT_TRUE((Partition{3, 3, 256}.shard(1000, 2)).empty());
}

TEST(Partition, TilesFollowEachOtherAndOnlyTheLastIsShort) {
  for (const std::int64_t n : sizes()) {
    for (const std::int64_t tile_size : {std::int64_t{2048}, std::int64_t{4096}, std::int64_t{1} << 22, n / 3 + 1}) {
      const std::int64_t count = num_tiles(n, tile_size);
      if (count > 10000) continue;  // the same arithmetic, only longer
      std::int64_t end = 0;
      for (std::int64_t tile = 0; tile < count; ++tile) {
        const ElementRange range = tile_range(n, tile_size, tile);
        ASSERT_EQ(range.begin, end);
        ASSERT_GT(range.size(), 0) << "no tile is empty";
        if (tile < count - 1) {
          ASSERT_EQ(range.size(), tile_size);
        }
        end = range.end;
      }
      ASSERT_EQ(end, n) << n << " in tiles of " << tile_size;
    }
  }
}

TEST(Partition, KnownValues) {
  EXPECT_EQ(shard_range(10, 0, 4), (ElementRange{0, 3}));
  EXPECT_EQ(shard_range(10, 3, 4), (ElementRange{9, 10}));
  EXPECT_EQ(shard_range(2, 3, 4), (ElementRange{2, 2}));
  EXPECT_EQ(tile_range(10, 4, 2), (ElementRange{8, 10}));
  EXPECT_EQ(num_tiles(0, 4), 0);
  EXPECT_EQ(round_up(4097, 4096), 8192);
  EXPECT_EQ(round_up(0, 4096), 0);
}

}  // namespace
}  // namespace spillway
