// Where extents go: shares by bandwidth, neighbours apart, no file larger than its disk has room, and no two extents on the
// same bytes.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nvme/swap_layout.h"
#include "support/io_error.h"

namespace spillway {
namespace {

using testing::io_error_of;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kPage = SwapStore::alignment;
constexpr std::int64_t kMuch = std::int64_t{1} << 50;

std::vector<SwapExtent> extents_of(int count, std::int64_t bytes, std::vector<int> paths = {}) {
  std::vector<SwapExtent> extents;
  for (int i = 0; i < count; ++i) extents.push_back({"tile " + std::to_string(i), bytes, paths});
  return extents;
}

struct Disks {
  std::vector<LayoutPath> paths;
  std::vector<LayoutDisk> disks;
};

// Each path on a disk of its own.
Disks disks_of(const std::vector<double>& bandwidths, const std::vector<std::int64_t>& free) {
  Disks all;
  for (std::size_t i = 0; i < bandwidths.size(); ++i) {
    all.paths.push_back({"/disk" + std::to_string(i), bandwidths[i], static_cast<int>(i), 100});
    all.disks.push_back({free[i]});
  }
  return all;
}

std::vector<std::int64_t> bytes_by_path(const std::vector<SwapExtent>& extents, const SwapLayout& layout) {
  std::vector<std::int64_t> bytes(layout.file_bytes.size());
  for (std::size_t e = 0; e < extents.size(); ++e) bytes[static_cast<std::size_t>(layout.places[e].path)] += extents[e].bytes;
  return bytes;
}

// What every layout has to hold to.
void expect_sound(const std::vector<SwapExtent>& extents, const Disks& disks, const SwapLayout& layout, const std::string& what) {
  ASSERT_EQ(layout.places.size(), extents.size()) << what;
  std::vector<std::map<std::int64_t, std::int64_t>> used(disks.paths.size());  // offset to end
  for (std::size_t e = 0; e < extents.size(); ++e) {
    const auto& [path, offset] = layout.places[e];
    const std::vector<int>& allowed = extents[e].paths;
    EXPECT_TRUE(allowed.empty() || std::ranges::find(allowed, path) != allowed.end()) << what;
    EXPECT_EQ(offset % kPage, 0) << what;
    EXPECT_GE(offset, kPage) << what << ": there is a header";
    EXPECT_LE(offset + extents[e].bytes, layout.file_bytes[static_cast<std::size_t>(path)]) << what;
    EXPECT_TRUE(used[static_cast<std::size_t>(path)].emplace(offset, offset + extents[e].bytes).second) << what;
  }
  for (const auto& ranges : used) {
    std::int64_t end = 0;
    for (const auto& [offset, range_end] : ranges) {
      EXPECT_GE(offset, end) << what;
      end = range_end;
    }
  }
  std::vector<std::int64_t> on_disk(disks.disks.size());
  for (std::size_t p = 0; p < disks.paths.size(); ++p) on_disk[static_cast<std::size_t>(disks.paths[p].disk)] += layout.file_bytes[p];
  for (std::size_t d = 0; d < on_disk.size(); ++d) EXPECT_LE(on_disk[d], disks.disks[d].free) << what;
}

TEST(SwapLayout, EachPathGetsTheShareItsBandwidthIsOfAll) {
  const std::vector<SwapExtent> extents = extents_of(600, 64 * kPage);
  const Disks disks = disks_of({3e9, 1e9, 2e9}, {kMuch, kMuch, kMuch});
  const SwapLayout layout = lay_out(extents, disks.paths, disks.disks);
  expect_sound(extents, disks, layout, "three paths");
  const std::vector<std::int64_t> bytes = bytes_by_path(extents, layout);
  for (const auto& [path, share] : {std::pair<std::size_t, int>{0, 300}, {1, 100}, {2, 200}}) {
    EXPECT_NEAR(static_cast<double>(bytes[path] / (64 * kPage)), share, 1.0) << path;
  }
}

TEST(SwapLayout, NeighboursLieOnDifferentPathsOfEqualBandwidth) {
  const std::vector<SwapExtent> extents = extents_of(40, 8 * kPage);
  const Disks disks = disks_of({1e9, 1e9}, {kMuch, kMuch});
  const SwapLayout layout = lay_out(extents, disks.paths, disks.disks);
  for (std::size_t e = 1; e < extents.size(); ++e) EXPECT_NE(layout.places[e].path, layout.places[e - 1].path) << e;
}

TEST(SwapLayout, StateIsSharedOutEvenlyWhereWeightsLieOnOnePathOnly) {
  std::vector<SwapExtent> extents = extents_of(10, 8 * kPage, {0});
  const std::vector<SwapExtent> state = extents_of(10, 8 * kPage, {1, 0});
  extents.insert(extents.end(), state.begin(), state.end());
  const Disks disks = disks_of({1e9, 1e9}, {kMuch, kMuch});
  const SwapLayout layout = lay_out(extents, disks.paths, disks.disks);
  expect_sound(extents, disks, layout, "mixed");
  EXPECT_EQ(bytes_by_path(extents, layout), (std::vector<std::int64_t>{15 * 8 * kPage, 5 * 8 * kPage}));
}

TEST(SwapLayout, APathWithoutRoomGetsLess) {
  const std::vector<SwapExtent> extents = extents_of(100, 4 * kPage);
  const Disks disks = disks_of({1e9, 1e9}, {kMuch, 31 * kPage});
  const SwapLayout layout = lay_out(extents, disks.paths, disks.disks);
  expect_sound(extents, disks, layout, "little room");
  EXPECT_EQ(bytes_by_path(extents, layout)[1], 7 * 4 * kPage) << "30 pages beside the header's";
}

TEST(SwapLayout, RoomIsKeptForExtentsThatMayGoNowhereElse) {
  std::vector<SwapExtent> extents = extents_of(20, kPage);
  const std::vector<SwapExtent> bound = extents_of(10, kPage, {1});
  extents.insert(extents.end(), bound.begin(), bound.end());
  const Disks disks = disks_of({1e9, 1e9}, {kMuch, 11 * kPage});
  const SwapLayout layout = lay_out(extents, disks.paths, disks.disks);
  expect_sound(extents, disks, layout, "bound extents come last");
}

TEST(SwapLayout, PathsOnOneFileSystemShareItsRoom) {
  const std::vector<SwapExtent> extents = extents_of(16, kPage);
  Disks disks = disks_of({1e9, 1e9}, {18 * kPage, 18 * kPage});
  disks.paths[1].disk = 0;
  disks.disks.pop_back();
  expect_sound(extents, disks, lay_out(extents, disks.paths, disks.disks), "just enough");
  disks.disks[0].free -= kPage;
  EXPECT_THAT(io_error_of([&] { lay_out(extents, disks.paths, disks.disks); }), HasSubstr("no room for tile 15"));
}

TEST(SwapLayout, WhatFitsNowhereIsRefusedWithATable) {
  std::vector<SwapExtent> extents = extents_of(10, 256 * kPage);
  extents[9].paths = {1};
  const Disks disks = disks_of({1e9, 1e9}, {kMuch, 200 * kPage});
  EXPECT_THAT(io_error_of([&] { lay_out(extents, disks.paths, disks.disks); }),
              AllOf(StartsWith("[nvme] lay out 10.0 MiB in 10 extents: no room for tile 9 (1.0 MiB); make room, add a path"),
                    ContainsRegex("\n +path +taken +left\n"), ContainsRegex("\n  /disk0 .*not for this one"),
                    ContainsRegex("\n  /disk1 +4.0 KiB +796.0 KiB$")));
}

TEST(SwapLayout, IsSoundForRandomTables) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
    const int paths = pick(1, 4);
    Disks disks;
    for (int p = 0; p < paths; ++p) {
      const bool own = p == 0 || pick(0, 2) > 0;
      if (own) disks.disks.push_back({(20 + pick(0, 2000)) * kPage});
      disks.paths.push_back({"/disk", 1.0 + pick(0, 9), static_cast<int>(disks.disks.size()) - 1, pick(60, 5000)});
    }
    std::vector<SwapExtent> extents;
    for (int e = pick(0, 200); e > 0; --e) {
      SwapExtent& extent = extents.emplace_back(SwapExtent{std::string(static_cast<std::size_t>(pick(0, 90)), 'x'), pick(1, 12) * kPage});
      for (int p = 0; p < paths; ++p) {
        if (pick(0, 3) == 0) extent.paths.push_back(p);
      }
    }
    if (paths == 1) disks.disks[0].free = kMuch;  // there the allocation says what does not fit
    SwapLayout layout;
    const std::string refusal = io_error_of([&] { layout = lay_out(extents, disks.paths, disks.disks); });
    if (refusal == "no error") {
      expect_sound(extents, disks, layout, "seed " + std::to_string(seed));
    } else {
      EXPECT_THAT(refusal, HasSubstr("no room for")) << seed;
    }
  }
}

}  // namespace
}  // namespace spillway
