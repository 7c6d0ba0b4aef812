#include "report/machine_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Two nodes, each with a device; nothing to complain of.
MachineReport good_machine() {
  MachineReport report;
  report.version = "1";
  report.host = {.cpu = "A CPU",
                 .cores = {0, 1, 2, 3},
                 .nodes = {{0, {0, 1}, {10, 21}}, {1, {2, 3}, {21, 10}}},
                 .total_bytes = std::int64_t{64} << 30,
                 .available_bytes = std::int64_t{60} << 30,
                 .locked_limit_bytes = -1,
                 .huge_pages = "madvise",
                 .instruction_set = "avx2",
                 .optimizer_bytes_per_s = 30e9,
                 .io_engine = "io_uring",
                 .io_engines = {"io_uring", "threads"}};
  for (int index = 0; index < 2; ++index) {
    CudaDeviceInfo device;
    device.index = index;
    device.name = "A GPU";
    device.compute_major = 9;
    device.driver_version = 13000;
    device.runtime_version = 12040;
    device.pci_address = "0000:17:00.0";
    device.numa_node = index;
    device.peers = {1 - index};
    device.h2d_bytes_per_s = 50e9;
    device.d2h_bytes_per_s = 51e9;
    device.both_ways_bytes_per_s = 90e9;
    report.devices.push_back(device);
  }
  report.disks.push_back({.path = "/mnt/nvme", .file_system = "xfs", .device = "/dev/nvme0n1", .free_bytes = std::int64_t{1} << 40, .numa_node = 1,
                          .read_bytes_per_s = 6e9, .write_bytes_per_s = 5e9, .mixed_bytes_per_s = 5.5e9, .latency_s = 83e-6, .error = ""});
  return report;
}

TEST(MachineReport, ShowsEveryDeviceWithItsLinkItsPeersAndItsDistance) {
  const std::string text = machine_text(good_machine());
  EXPECT_THAT(text, HasSubstr("cuda:1       A GPU, compute 9.0"));
  EXPECT_THAT(text, HasSubstr("driver for CUDA 13.0, runtime 12.4"));
  EXPECT_THAT(text, HasSubstr("0000:17:00.0, node 1 (distance 21 to the cores of node 0, distance 10 to the cores of node 1)"));
  EXPECT_THAT(text, HasSubstr("50.0 GB/s down, 51.0 GB/s up, 90.0 GB/s both at once"));
  EXPECT_THAT(text, HasSubstr("peers      cuda:0"));
  EXPECT_THAT(text, HasSubstr("/mnt/nvme: xfs on /dev/nvme0n1 (node 1)"));
  EXPECT_THAT(text, HasSubstr("6.0 GB/s read, 5.0 GB/s written, 5.5 GB/s both at once; a page takes 83 us\n"));
  EXPECT_THAT(text, HasSubstr("nothing to change"));
}

TEST(MachineReport, AdvisesOnWhatIsAmiss) {
  MachineReport report = good_machine();
  EXPECT_THAT(advice(report), IsEmpty());
  report.host.huge_pages = "never";
  report.host.locked_limit_bytes = 8 << 20;
  report.host.io_engine = "threads";
  report.host.instruction_set = "scalar";
  report.host.nodes[1].cores.clear();
  report.devices[0].h2d_bytes_per_s = 3e9;
  report.disks[0].file_system = "tmpfs";
  const std::vector<std::string> sentences = advice(report);
  for (const char* words : {"huge pages are off", "may lock 8.0 MiB", "io_uring does not work here", "no AVX2", "cuda:0 has a link of 3.0 GB/s",
                            "cuda:1 is at node 1, of which this process may use no core", "'/mnt/nvme' is memory"}) {
    EXPECT_THAT(sentences, Contains(HasSubstr(words)));
  }
  EXPECT_EQ(sentences.size(), 7u);
  EXPECT_THAT(machine_text(report), Not(HasSubstr("nothing to change")));
}

TEST(MachineReport, SaysWhatIsMeasuredThroughThePageCache) {
  MachineReport report = good_machine();
  report.disks[0].buffered = true;
  EXPECT_THAT(machine_text(report), HasSubstr("83 us; all through the page cache\n"));
  EXPECT_THAT(advice(report), ::testing::ElementsAre(HasSubstr("'/mnt/nvme' is on a file system without O_DIRECT")));
}

TEST(MachineReport, SaysWhyADeviceCannotBeUsedAndAdvisesNothingOnIt) {
  MachineReport report = good_machine();
  report.devices[0].error = "out of memory";
  report.devices[0].h2d_bytes_per_s = 1.0;
  EXPECT_THAT(machine_text(report), HasSubstr("cannot be used: out of memory"));
  EXPECT_THAT(advice(report), IsEmpty());
}

TEST(MachineReport, JsonHoldsTheSame) {
  MachineReport report = good_machine();
  report.host.huge_pages = "never";
  const nlohmann::json json = nlohmann::json::parse(machine_json(report));
  EXPECT_EQ(json["devices"][1]["peers"], nlohmann::json({0}));
  EXPECT_EQ(json["devices"][0]["compute"], nlohmann::json({9, 0}));
  EXPECT_TRUE(json["host"]["locked_limit_bytes"].is_null());
  EXPECT_EQ(json["host"]["nodes"][1]["cores"], nlohmann::json({2, 3}));
  EXPECT_EQ(json["disks"][0]["write_bytes_per_s"], 5e9);
  EXPECT_EQ(json["advice"].size(), 1u);
}

}  // namespace
}  // namespace spillway
