// What is known of a path while it works: latencies in bins, busy time, headers that tell files apart.
#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nvme/path_activity.h"
#include "nvme/swap_header.h"
#include "support/swap_harness.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using namespace spillway::testing;
using ::testing::ContainsRegex;

TEST(LatencyHistogram, PercentilesAreWithinSixPercentOfTheTrueOnes) {
  std::mt19937 random(1);
  for (const double middle : {9.0, 700.0, 8e4, 3e6, 2e10}) {
    LatencyHistogram histogram;
    std::vector<std::int64_t> all;
    std::lognormal_distribution<double> latency(std::log(middle), 1.0);
    for (int i = 0; i < 20000; ++i) {
      all.push_back(static_cast<std::int64_t>(latency(random)));
      histogram.add(all.back());
    }
    std::ranges::sort(all);
    const IoLatency found = histogram.summary();
    EXPECT_EQ(found.count, 20000);
    // The bins of a few nanoseconds are one wide.
    EXPECT_NEAR(found.p50_s, static_cast<double>(all[9999]) * 1e-9, std::max(0.06 * found.p50_s, 1e-9)) << middle;
    EXPECT_NEAR(found.p99_s, static_cast<double>(all[19799]) * 1e-9, std::max(0.06 * found.p99_s, 1e-9)) << middle;
    EXPECT_DOUBLE_EQ(found.max_s, static_cast<double>(all.back()) * 1e-9);
  }
}

TEST(LatencyHistogram, TakesTheExtremesAndNothing) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.summary().count, 0);
  EXPECT_EQ(histogram.summary().p99_s, 0.0);
  for (const std::int64_t ns : {std::int64_t{-5}, std::int64_t{0}, std::int64_t{1} << 62}) histogram.add(ns);
  EXPECT_EQ(histogram.summary().count, 3);
  EXPECT_EQ(histogram.summary().p50_s, 0.0);
}

TEST(SwapPathHealth, SinceAnotherLookIsWhatHappenedThen) {
  LatencyHistogram reads, writes;
  for (int i = 0; i < 100; ++i) reads.add(1'000'000);
  writes.add(5'000'000);
  SwapPathHealth before;
  before.folder = "a";
  before.depth = 4;
  before.read_bytes = 100;
  before.write_bytes = 10;
  before.busy_s = 2.0;
  before.retries = 3;
  before.read_latency = reads.summary();
  before.write_latency = writes.summary();
  for (int i = 0; i < 10; ++i) reads.add(20'000);
  writes.add(7'000'000);
  SwapPathHealth now = before;
  now.read_bytes = 160;
  now.write_bytes = 30;
  now.busy_s = 2.5;
  now.retries = 4;
  now.checksum_failures = 1;
  now.read_latency = reads.summary();
  now.write_latency = writes.summary();
  const SwapPathHealth between = since(before, now);
  EXPECT_EQ(between.folder, "a");
  EXPECT_EQ(between.depth, 4);
  EXPECT_EQ(between.read_bytes, 60);
  EXPECT_EQ(between.write_bytes, 20);
  EXPECT_DOUBLE_EQ(between.busy_s, 0.5);
  EXPECT_DOUBLE_EQ(between.bytes_per_s(), 160.0);
  EXPECT_EQ(between.retries, 1);
  EXPECT_EQ(between.checksum_failures, 1);
  EXPECT_EQ(between.read_latency.count, 10);
  for (const double seconds : {between.read_latency.p50_s, between.read_latency.p99_s, between.read_latency.max_s}) EXPECT_NEAR(seconds, 20e-6, 0.06 * 20e-6);
  EXPECT_EQ(between.write_latency.count, 1);
  EXPECT_DOUBLE_EQ(between.write_latency.max_s, 7e-3) << "the longest of all is known exactly";
  EXPECT_EQ(since(now, now).read_latency.count, 0);
  EXPECT_EQ(since(now, now).read_latency.max_s, 0.0);
  EXPECT_EQ(since(now, now).bytes_per_s(), 0.0);
}

TEST(LatencyHistogram, LosesNothingThatSeveralThreadsAdd) {
  LatencyHistogram histogram;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&histogram, t] {
      for (int i = 0; i < 10000; ++i) histogram.add(100 * t + i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(histogram.summary().count, 30000);
  EXPECT_DOUBLE_EQ(histogram.summary().max_s, 10199e-9);
}

TEST(BusyClock, CountsTimeWithAnyRingAtWorkOnce) {
  BusyClock clock;
  clock.begin(100);
  clock.begin(150);
  EXPECT_EQ(clock.busy_ns(160), 60);
  clock.end(200);
  clock.end(250);
  EXPECT_EQ(clock.busy_ns(900), 150);
  clock.begin(1000);
  clock.end(1001);
  EXPECT_EQ(clock.busy_ns(2000), 151);
}

TEST(SwapHeader, ComesBackFromItsFirstPage) {
  SwapIdentity identity = next_swap_identity("rank 3 of 8, adam with fp32 moments", 2);
  identity.path_index = 1;
  std::vector<PlacedExtent> table;
  for (int i = 0; i < 500; ++i) table.push_back({"tile " + std::to_string(i), 4096 * i, 4096});
  const std::vector<std::byte> header = encode_swap_header(identity, table);
  EXPECT_EQ(header.size() % 4096, 0u);
  std::int64_t expected = swap_header_base(identity);
  for (const PlacedExtent& extent : table) expected += swap_table_row_bytes(extent.name);
  EXPECT_GE(static_cast<std::int64_t>(header.size()), expected);
  EXPECT_LT(static_cast<std::int64_t>(header.size()), expected + 4096);
  EXPECT_EQ(decode_swap_identity(std::span(header).first(4096)), identity);
  EXPECT_THAT(text_of(identity), ContainsRegex("^run [0-9a-f]{16}, store [0-9]+, path 2 of 2, rank 3 of 8, adam with fp32 moments$"));
}

TEST(SwapHeader, TellsStoresOfOneProcessApartAndSurvivesLongContents) {
  const SwapIdentity first = next_swap_identity(std::string(100000, 'c'), 1), second = next_swap_identity("", 1);
  EXPECT_EQ(first.run, second.run);
  EXPECT_EQ(first.generation + 1, second.generation);
  EXPECT_EQ(decode_swap_identity(encode_swap_header(first, {})), first);
}

TEST(SwapHeader, IsNotReadIntoOtherBytes) {
  std::vector<std::byte> page = encode_swap_header(next_swap_identity("x", 1), {});
  EXPECT_FALSE(decode_swap_identity(std::vector<std::byte>(4096)).has_value());
  EXPECT_FALSE(decode_swap_identity(std::span(page).first(20)).has_value());
  page[3] ^= std::byte{1};
  EXPECT_FALSE(decode_swap_identity(page).has_value());
}

TEST(SwapHealth, CountsWhatEveryPathHasMoved) {
  const TestFolder a, b;
  auto options = store_options(a.path(), std::vector<std::int64_t>(8, 40 * 4096));
  options.paths = {{a.path(), 1e9}, {b.path(), 3e9}};
  options.block_bytes = 8 * 4096;
  options.engine.depth = 4;
  options.rings = 2;
  const auto store = make_swap_store(options);
  const auto channel = store->open_channel(IoPriority::streaming);
  const AlignedBuffer data(40 * 4096);
  AlignedBuffer back(40 * 4096);
  for (int e = 0; e < 8; ++e) write_now(*channel, e, data);
  for (int e = 0; e < 8; ++e) read_now(*channel, e, back);
  const std::vector<SwapPathHealth> health = store->health();
  ASSERT_EQ(health.size(), 2u);
  for (std::size_t p = 0; p < 2; ++p) {
    const std::int64_t extents = p == 0 ? 2 : 6;
    EXPECT_EQ(health[p].folder, options.paths[p].folder);
    EXPECT_EQ(health[p].engine, store->engine_name());
    EXPECT_FALSE(health[p].file_system.empty());
    EXPECT_EQ(health[p].depth, 8);
    EXPECT_EQ(health[p].block_bytes, 8 * 4096);
    EXPECT_EQ(health[p].file_bytes, 4096 + extents * 40 * 4096);
    EXPECT_EQ(health[p].write_bytes, extents * 40 * 4096);
    EXPECT_EQ(health[p].read_bytes, extents * 40 * 4096);
    EXPECT_EQ(health[p].write_latency.count - health[p].retries, extents * 5);
    EXPECT_GT(health[p].read_latency.p50_s, 0.0);
    EXPECT_GE(health[p].read_latency.max_s, health[p].read_latency.p99_s);
    EXPECT_GT(health[p].bytes_per_s(), 0.0);
    EXPECT_EQ(health[p].checksum_failures, 0);
  }
}

}  // namespace
}  // namespace spillway
