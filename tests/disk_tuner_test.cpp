// The sweep over settings of the NVMe tier, and which of them it takes.
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "spillway/disk_tuner.h"
#include "spillway/error.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

DiskSample sample(std::int64_t block_bytes, int depth, double mixed, const std::string& engine = "threads") {
  DiskSample sample{{engine, block_bytes, depth}, {}, 1};
  sample.rates.mixed_bytes = mixed;
  return sample;
}

// Of one folder.
std::size_t best_of(const std::vector<DiskSample>& samples) { return best_setting(std::span(&samples, 1)); }

TEST(DiskSettings, AreEveryCombinationThatADiskMayAskFor) {
  const std::vector<std::string> engines = {"one", "two"};
  const std::vector<DiskSetting> settings = disk_settings(engines, false);
  std::set<std::tuple<std::string, std::int64_t, int>> different;
  std::set<std::int64_t> blocks;
  std::set<int> depths;
  for (const DiskSetting& setting : settings) {
    different.insert({setting.engine, setting.block_bytes, setting.depth});
    blocks.insert(setting.block_bytes);
    depths.insert(setting.depth);
    EXPECT_LE(setting.bytes_in_flight(), 64 * kMiB);
  }
  EXPECT_EQ(different.size(), settings.size());
  EXPECT_EQ(*blocks.begin(), 128 << 10);
  EXPECT_EQ(*blocks.rbegin(), 8 * kMiB);
  EXPECT_EQ(depths, (std::set<int>{1, 2, 4, 8, 16, 32, 64, 128}));
  EXPECT_EQ(blocks.size(), 7u);
  const std::vector<DiskSetting> quick = disk_settings(engines, true);
  EXPECT_LT(quick.size(), settings.size() / 4);
  for (const DiskSetting& setting : quick) EXPECT_TRUE(different.contains({setting.engine, setting.block_bytes, setting.depth}));
}

TEST(BestSetting, IsTheFastestInBothDirections) {
  EXPECT_EQ(best_of({sample(kMiB, 1, 1e9), sample(kMiB, 4, 2e9), sample(kMiB, 16, 1.5e9)}), 1u);
}

TEST(BestSetting, IsTheSimplestOfThoseThatAreAsGood) {
  EXPECT_EQ(best_of({sample(kMiB, 4, 1.90e9), sample(kMiB, 8, 1.95e9), sample(kMiB, 16, 2e9)}), 1u) << "less than 3 % slower, at half the depth";
  EXPECT_EQ(best_of({sample(4 * kMiB, 4, 2e9), sample(kMiB, 8, 1.99e9)}), 1u) << "fewer bytes in flight";
  EXPECT_EQ(best_of({sample(kMiB, 8, 1.99e9), sample(8 * kMiB, 1, 1.99e9), sample(2 * kMiB, 4, 2e9)}), 1u) << "as many bytes at a smaller depth";
  EXPECT_EQ(best_of({sample(kMiB, 8, 1.99e9, "io_uring"), sample(kMiB, 8, 2e9)}), 0u) << "the better engine comes first";
}

TEST(BestSetting, IsOfAllFoldersTogether) {
  const std::vector<std::vector<DiskSample>> folders = {{sample(kMiB, 2, 3e9), sample(kMiB, 8, 2.5e9)}, {sample(kMiB, 2, 1e9), sample(kMiB, 8, 2e9)}};
  EXPECT_EQ(best_setting(folders), 1u);
}

TEST(DiskSweep, MeasuresEverySettingOnEveryFolderAndLeavesNothing) {
  const testing::TestFolder one, two;
  DiskSweepOptions options;
  options.settings = {{"threads", 64 << 10, 1}, {"threads", 64 << 10, 4}};
  options.rounds = 3;
  options.seconds_per_rate = 0.001;
  std::vector<int> progress;
  options.progress = [&](int done, int total) {
    EXPECT_EQ(total, 12);
    progress.push_back(done);
  };
  const std::vector<std::string> folders = {one.path(), two.path()};
  const auto samples = sweep_disks(folders, options);
  ASSERT_EQ(samples.size(), 2u);
  for (const std::vector<DiskSample>& folder : samples) {
    ASSERT_EQ(folder.size(), 2u);
    EXPECT_EQ(folder[1].setting.depth, 4);
    for (const DiskSample& measured : folder) {
      EXPECT_EQ(measured.rounds, 3);
      for (const double rate : {measured.rates.read_bytes, measured.rates.write_bytes, measured.rates.mixed_bytes, measured.rates.block_latency_s}) EXPECT_GT(rate, 0.0);
    }
  }
  EXPECT_EQ(progress.size(), 12u);
  EXPECT_EQ(progress.back(), 12);
  for (const std::string& folder : folders) EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(DiskSweep, EndsWhenItsTimeIsOver) {
  const testing::TestFolder folder;
  DiskSweepOptions options;
  options.settings = {{"threads", 64 << 10, 1}, {"threads", 64 << 10, 2}};
  options.limit_s = 0.0;
  const std::vector<std::string> folders = {folder.path()};
  EXPECT_TRUE(sweep_disks(folders, options).front().empty()) << "what was not measured is not there";
}

TEST(DiskSweep, ThrowsWhatAProbeThrows) {
  DiskSweepOptions options;
  options.settings = {{"threads", 64 << 10, 1}};
  const std::vector<std::string> folders = {"/no/such/folder"};
  EXPECT_THROW(sweep_disks(folders, options), IoError);
}

}  // namespace
}  // namespace spillway
