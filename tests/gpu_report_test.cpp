// What the CUDA device says of itself: to `spillway doctor`, to metrics, to a profiler. The simulation has two devices here,
// of which its NVML knows one.
#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda_sim/cuda_sim.h"
#include "spillway/device.h"

namespace spillway {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(GpuReport, DescribesEveryDeviceAndItsLink) {
  const std::vector<CudaDeviceInfo> devices = cuda_devices();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(cuda_device_count(), 2);
  EXPECT_THAT(devices[0].peers, ElementsAre(1));
  EXPECT_THAT(devices[1].peers, ElementsAre(0));
  EXPECT_EQ(devices[1].pci_address, "0000:02:00.0");
  EXPECT_EQ(devices[1].index, 1);
  const CudaDeviceInfo& info = devices[0];
  EXPECT_EQ(info.error, "");
  EXPECT_EQ(info.name, "Simulated GPU 0");
  EXPECT_EQ(info.compute_major, 9);
  EXPECT_EQ(info.driver_version, 13000);
  EXPECT_EQ(info.total_bytes, std::int64_t{1} << 30);
  EXPECT_LE(info.free_bytes, info.total_bytes);
  EXPECT_GT(info.h2d_bytes_per_s, 0.0);
  EXPECT_GT(info.d2h_bytes_per_s, 0.0);
  EXPECT_GT(info.both_ways_bytes_per_s, 0.0);
}

TEST(GpuReport, ListsADeviceThatCannotBeUsedAndSaysWhy) {
  cuda_sim::Settings settings = cuda_sim::settings();
  settings.refuse_pinning = true;
  cuda_sim::set_settings(settings);
  const std::vector<CudaDeviceInfo> devices = cuda_devices();
  cuda_sim::reset();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].name, "Simulated GPU 0");
  EXPECT_THAT(devices[0].error, HasSubstr("register"));
}

TEST(GpuReport, SaysHowBusyADeviceIsWhereNvmlKnowsIt) {
  const std::optional<DeviceUse> use = make_cuda_device(0)->use();
  ASSERT_TRUE(use.has_value());
  EXPECT_EQ(use->utilization, 0.75);
  EXPECT_EQ(use->used_bytes, std::int64_t{1} << 28);
  EXPECT_FALSE(make_cuda_device(1)->use().has_value());
  EXPECT_FALSE(make_host_device({.threads = 1})->use().has_value());
}

TEST(GpuReport, NamesRangesToAProfilerThatIsAttached) {
  const auto device = make_cuda_device(0);
  const auto stream = device->make_stream("compute");
  void* const tool = dlopen(std::getenv("NVTX_INJECTION64_PATH"), RTLD_NOW);
  ASSERT_NE(tool, nullptr);
  const auto names = reinterpret_cast<const char* (*)()>(dlsym(tool, "nvtx_recorded_names"));
  const auto open_ranges = reinterpret_cast<int (*)()>(dlsym(tool, "nvtx_open_ranges"));
  {
    const NamedRange step(*stream, "step", "");
    const NamedRange task(*stream, "forward", "block 3");
    EXPECT_EQ(open_ranges(), 2);
    const NamedRange longest(*stream, std::string(500, 'x'), "y");
  }
  EXPECT_EQ(open_ranges(), 0);
  EXPECT_EQ(names(), "step\nforward block 3\n" + std::string(127, 'x') + "\n");
  dlclose(tool);
}

}  // namespace
}  // namespace spillway
