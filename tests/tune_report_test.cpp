// What `spillway tune` prints and writes: a table whose columns line up, and files that load again.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "report/tune_report.h"
#include "spillway/config.h"
#include "support/config_text.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

DiskSample sample(const std::string& engine, std::int64_t block_bytes, int depth, double rate) {
  DiskRates rates{.read_bytes = 2 * rate, .write_bytes = rate / 2, .mixed_bytes = rate, .latency_s = 80e-6, .block_latency_s = 900e-6, .block_bytes = block_bytes};
  return {{engine, block_bytes, depth}, rates, 3};
}

TuneReport two_disks() {
  TuneReport report;
  report.folders = {"/mnt/a", "/mnt/longer"};
  report.samples = {{sample("io_uring", 128 << 10, 1, 12e6), sample("libaio", 8 << 20, 128, 12345e6)},
                    {sample("io_uring", 128 << 10, 1, 10e6), sample("libaio", 8 << 20, 128, 655e6)}};
  report.best = 1;
  return report;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(TuneReport, IsATableWhoseBestLinesAreMarked) {
  const std::vector<std::string> lines = lines_of(tune_text(two_disks()));
  ASSERT_EQ(lines.size(), 7u);
  for (std::size_t line = 1; line <= 2; ++line) EXPECT_EQ(lines[line].size(), lines[0].size()) << lines[line];
  EXPECT_THAT(lines[1], HasSubstr("/mnt/a       io_uring  128.0 KiB      1         24           6          12         900"));
  for (std::size_t line = 3; line <= 4; ++line) EXPECT_THAT(lines[line], EndsWith("900  <- best"));
  EXPECT_EQ(lines[6], "best: libaio, blocks of 8.0 MiB, depth 128: 13000 MB/s read and written, each path measured alone");
}

TEST(TuneReport, SaysWhatDoesNotWorkAndWhatIsNoDisk) {
  TuneReport report = two_disks();
  report.unusable = {{"io_uring", "sysctl kernel.io_uring_disabled is 2"}};
  report.samples[1][1].rates.buffered = true;
  const std::string text = tune_text(report);
  EXPECT_THAT(text, HasSubstr("io_uring does not work here: sysctl kernel.io_uring_disabled is 2\n"));
  EXPECT_THAT(text, HasSubstr("/mnt/longer: the file system has no O_DIRECT"));
}

TEST(TuneReport, TheAioSectionIsAConfiguration) {
  const DiskSetting setting{"libaio", 256 << 10, 16};
  const std::string text = aio_json(setting, false);
  EXPECT_EQ(nlohmann::json::parse(text).size(), 1u) << "nothing that DeepSpeed does not read";
  const Config config = testing::parse(text);
  EXPECT_EQ(config.aio.block_size, 256 << 10);
  EXPECT_EQ(config.aio.queue_depth, 16);
  EXPECT_EQ(config.aio.intra_op_parallelism, 1);
  EXPECT_TRUE(config.aio.single_submit);
  EXPECT_TRUE(config.aio.overlap_events);
  EXPECT_EQ(config.spillway.io_engine, "auto");
  EXPECT_EQ(testing::parse(aio_json(setting, true)).spillway.io_engine, "libaio");
}

TEST(TuneReport, TheProfileLoadsWithItsNotes) {
  MachineRates rates;
  rates.nvme_mixed_bytes = 1.25e9;
  rates.cores = 12;
  const testing::TestFolder folder;
  const std::string file = folder.path() + "/rates.json";
  const std::string text = profile_json(rates, two_disks(), {"comm_bytes", "network_bytes"});
  std::ofstream(file) << text;
  EXPECT_EQ(load_rates(file), rates);
  EXPECT_THAT(text, HasSubstr("libaio, blocks of 8.0 MiB, depth 128, on /mnt/a, /mnt/longer"));
  EXPECT_THAT(text, HasSubstr("defaults: comm_bytes, network_bytes"));
}

}  // namespace
}  // namespace spillway
