// Finding and opening the CUDA module. Each case is a process of its own: a module once opened stays.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "spillway/communicator.h"
#include "spillway/device.h"
#include "spillway/error.h"

namespace spillway {
namespace {

bool mapped(const std::string& library) {
  std::stringstream maps;
  maps << std::ifstream("/proc/self/maps").rdbuf();
  return maps.str().find(library) != std::string::npos;
}

// Says on standard error what is wrong with the module of that path; nothing if it has a device.
[[noreturn]] void tell(const char* path) {
  setenv("SPILLWAY_CUDA_MODULE", path, 1);
  std::string said = why_no_cuda_device();
  if (!said.empty()) {
    try {
      make_cuda_device(0);
      said = "a device where there is none";
    } catch (const DeviceError& error) {
      said += '|' + std::string(error.what());
    }
    if (cuda_device_count() != 0 || !cuda_devices().empty()) said = "devices where there are none";
  }
  std::fputs(said.c_str(), stderr);
  std::exit(0);
}

using GpuLoaderDeathTest = testing::Test;

TEST(GpuLoaderDeathTest, RefusesAModuleThatIsNotThere) {
  EXPECT_EXIT(tell("/nowhere/libspillway_cuda.so"), testing::ExitedWithCode(0),
              "cannot be opened: /nowhere/libspillway_cuda.so: cannot open shared object file.*\\|\\[cuda\\] open device 0: .*use --device host");
}

TEST(GpuLoaderDeathTest, RefusesALibraryThatIsNoModule) {
  EXPECT_EXIT(tell(CUDA_SIM_LIBRARY), testing::ExitedWithCode(0), "is no CUDA module of this program; install the two together");
}

TEST(GpuLoaderDeathTest, RefusesAModuleOfAnotherBuild) {
  EXPECT_EXIT(tell(OTHER_MODULE), testing::ExitedWithCode(0), "is a CUDA module of another build \\(version 1000000, this program has [0-9]+\\)");
}

TEST(GpuLoaderDeathTest, OpensTheModuleItIsTold) { EXPECT_EXIT(tell(CUDA_SIM_MODULE), testing::ExitedWithCode(0), "^$"); }

// Without a name the module is the one of the build, which needs a driver.
TEST(GpuLoaderDeathTest, LooksForTheDriverBeforeItLoadsCuda) {
  const auto look = [] {
    unsetenv("SPILLWAY_CUDA_MODULE");
    const std::string said = why_no_cuda_device();
    std::fputs(said.empty() ? "a device" : said.starts_with("no NVIDIA driver") && mapped("libcudart") ? "CUDA loaded for nothing" : "as it should be", stderr);
    std::exit(0);
  };
  EXPECT_EXIT(look(), testing::ExitedWithCode(0), "^(a device|as it should be)$");
}

TEST(GpuLoaderDeathTest, LoadsNothingUntilADeviceIsAskedFor) {
  const auto look = [] {
    setenv("SPILLWAY_CUDA_MODULE", CUDA_SIM_MODULE, 1);
    const std::unique_ptr<Device> host = make_host_device({.threads = 1});
    const std::unique_ptr<World> self = make_self_world();
    if (make_device_world(*self, *host, {}) != nullptr) std::exit(2);
    if (mapped("libcuda") || mapped("libspillway_cuda")) std::exit(3);
    const std::string reason = why_no_cuda_device();
    std::exit(reason.empty() && mapped("libspillway_cuda_sim.so") ? 0 : 4);
  };
  EXPECT_EXIT(look(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace spillway
