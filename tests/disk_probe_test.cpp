// What the disk under a folder can do. How fast it is nobody knows: these tests look at what is measured, not at how much.
#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "spillway/disk_probe.h"
#include "spillway/error.h"
#include "support/io_error.h"
#include "support/syscall_filter.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using ::spillway::testing::io_error_of;
using ::spillway::testing::TestFolder;
using ::testing::HasSubstr;

DiskProbeOptions quick(std::string engine = "auto", int depth = 4, std::int64_t block_bytes = 64 << 10) {
  DiskProbeOptions options;
  options.engine = {.name = std::move(engine), .depth = depth};
  options.block_bytes = block_bytes;
  options.file_bytes = 1 << 20;
  options.seconds_per_rate = 0.005;
  return options;
}

void expect_measured(const DiskRates& rates, std::int64_t block_bytes) {
  EXPECT_GT(rates.read_bytes, 0.0);
  EXPECT_GT(rates.write_bytes, 0.0);
  EXPECT_GT(rates.mixed_bytes, 0.0);
  EXPECT_GT(rates.latency_s, 0.0);
  EXPECT_GT(rates.block_latency_s, 0.0);
  EXPECT_EQ(rates.block_bytes, block_bytes);
}

TEST(DiskProbe, MeasuresWithEveryEngineDepthAndBlock) {
  const TestFolder folder;
  for (const std::string_view engine : io_engine_names()) {
    if (engine == "io_uring" && usable_io_engine() != engine) continue;
    for (const int depth : {1, 3, 64}) {
      for (const std::int64_t block : {4096, 12288, 1 << 20}) {
        const DiskRates rates = probe_disk(folder.path(), quick(std::string(engine), depth, block));
        expect_measured(rates, block);
        EXPECT_FALSE(rates.buffered) << "the build folder's file system has no O_DIRECT";
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the scratch file has a name";
}

TEST(DiskProbe, MeasuresSeveralFoldersInTheirOrder) {
  const TestFolder first, second;
  const std::vector<std::string> folders = {first.path(), second.path(), first.path()};
  const std::vector<DiskRates> rates = probe_disks(folders, quick());
  ASSERT_EQ(rates.size(), 3u);
  for (const DiskRates& disk : rates) expect_measured(disk, 64 << 10);
  EXPECT_TRUE(probe_disks({}, quick()).empty());
}

TEST(DiskRates, MeasuresTheSameThingOnce) {
  const TestFolder first, second;
  const std::vector<std::string> one = {first.path()}, other = {second.path()}, both = {first.path(), second.path()};
  const DiskRates rates = disk_rates(one, quick()).front();
  expect_measured(rates, 64 << 10);
  EXPECT_EQ(disk_rates(one, quick()).front().mixed_bytes, rates.mixed_bytes);
  EXPECT_EQ(disk_rates(other, quick()).front().mixed_bytes, rates.mixed_bytes) << "the same disk";
  EXPECT_NE(disk_rates(both, quick()).front().mixed_bytes, rates.mixed_bytes) << "at the same time each has its share";
  EXPECT_NE(disk_rates(one, quick("auto", 8)).front().mixed_bytes, rates.mixed_bytes);
  EXPECT_EQ(disk_rates(one, quick("auto", 4, 4096)).front().block_bytes, 4096);
  EXPECT_THAT(io_error_of([&] { disk_rates(std::vector{first.path() + "/missing"}, quick()); }), HasSubstr("No such file"));
}

TEST(DiskProbe, OneBadFolderAmongSeveralIsAnErrorThatNamesIt) {
  const TestFolder good;
  const std::vector<std::string> folders = {good.path(), good.path() + "/missing", good.path()};
  EXPECT_THAT(io_error_of([&] { probe_disks(folders, quick()); }), HasSubstr("(" + good.path() + "/missing): No such file"));
}

TEST(DiskProbe, RefusesWhatCannotBeMeasured) {
  const TestFolder folder;
  EXPECT_THAT(io_error_of([] { probe_disk("/proc", quick()); }), HasSubstr("(/proc): No such file"));
  EXPECT_THAT(io_error_of([&] { probe_disk(folder.path(), quick("auto", 4, 1000)); }), HasSubstr("blocks of 1000 bytes; allowed: multiples of 4096"));
  EXPECT_THAT(io_error_of([&] { probe_disk(folder.path(), quick("auto", 0)); }), HasSubstr("depth 0"));
  EXPECT_THAT(io_error_of([&] { probe_disk(folder.path(), quick("io_urng")); }), HasSubstr("did you mean \"io_uring\"?"));
}

// In a child: without O_DIRECT the rates are those of the page cache, and say so.
TEST(DiskProbeDeathTest, SaysWhereThePageCacheIsInBetween) {
  EXPECT_EXIT(
      {
        ::spillway::testing::deny_setting_flag(O_DIRECT, EINVAL);
        const TestFolder folder;
        const DiskRates rates = probe_disk(folder.path(), quick());
        _exit(rates.buffered && rates.read_bytes > 0.0 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// 2 GB/s; a page takes 80 us, a block of 1 MiB 600 us alone: by Little's law 1.2 MB in flight keep it busy.
DiskRates disk() {
  return {.read_bytes = 2e9, .write_bytes = 1e9, .mixed_bytes = 1.5e9, .latency_s = 80e-6, .block_latency_s = 600e-6, .block_bytes = 1 << 20};
}

TEST(DepthFor, IsTwiceLatencyAndTheAbsenceOfTheThreadTimesBandwidth) {
  EXPECT_EQ(depth_for(disk(), 1 << 20), 41);  // (2 x 600 us + 20 ms) x 2 GB/s / 1 MiB = 40.4
  DiskRates slow_to_answer = disk();
  slow_to_answer.block_latency_s = 10e-3;
  EXPECT_EQ(depth_for(slow_to_answer, 1 << 20), 77);  // (2 x 10 ms + 20 ms) x 2 GB/s / 1 MiB = 76.3
  EXPECT_EQ(depth_for(disk(), 4096), 128) << "the most";
  EXPECT_EQ(depth_for({}, 1 << 20), 4) << "the least";
}

TEST(DepthFor, TakesALineBetweenThePageAndTheMeasuredBlock) {
  // Half way: 80 us + (600 us - 80 us) x (508 KiB / 1020 KiB) = 339 us; (2 x 339 us + 20 ms) x 2 GB/s / 512 KiB = 78.9.
  EXPECT_EQ(depth_for(disk(), 512 << 10), 79);
  // Beyond: 80 us + 520 us x (8188 KiB / 1020 KiB) = 4.25 ms; (2 x 4.25 ms + 20 ms) x 2 GB/s / 8 MiB = 6.8.
  EXPECT_EQ(depth_for(disk(), 8 << 20), 7);
}

}  // namespace
}  // namespace spillway
