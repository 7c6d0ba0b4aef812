// The swap store on file systems of its own: full ones, and one whose free space can be counted to the
// block. Needs root, to mount in a private namespace; exits 77 without.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/mounted_folder.h"
#include "support/swap_harness.h"

namespace spillway {
namespace {

using namespace spillway::testing;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::StartsWith;

constexpr std::int64_t kMiB = 1 << 20;

std::uint64_t free_blocks(const std::string& folder) {
  struct statvfs status{};
  EXPECT_EQ(statvfs(folder.c_str(), &status), 0);
  return status.f_bfree;
}

class SwapStoreOnMount : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(folder_.mounted()) << "cannot mount " << GetParam() << ": " << strerror(errno); }
  MountedFolder folder_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(FileSystem, SwapStoreOnMount, ::testing::Values("tmpfs", "ext4"),
                         [](const auto& info) { return info.param; });

TEST_P(SwapStoreOnMount, AFullDiskIsRefusedAtStartAndGivesBackWhatItTook) {
  const std::uint64_t before = free_blocks(folder_.path());
  EXPECT_THAT(io_error_of([&] { make_swap_store(store_options(folder_.path(), {64 * kMiB})); }),
              AllOf(StartsWith("[nvme] allocate swap file (" + folder_.path() +
                               "): No space left on device; needs 64.0 MiB, "),
                    ContainsRegex("needs 64.0 MiB, [0-9.]+ MiB free; make room")));
  EXPECT_EQ(free_blocks(folder_.path()), before);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()) || GetParam() == "ext4");  // ext4 has lost+found
}

TEST_P(SwapStoreOnMount, EveryByteIsAllocatedAtStart) {
  const auto store = make_swap_store(store_options(folder_.path(), {4 * kMiB, 4 * kMiB}));
  // Others take all the rest; the store's writes still succeed.
  std::ofstream hog(folder_.path() + "/hog");
  const std::vector<char> chunk(64 * 1024, 'x');
  while (hog.write(chunk.data(), static_cast<std::streamsize>(chunk.size())).flush()) {
  }
  const auto channel = store->open_channel(IoPriority::streaming);
  AlignedBuffer data(4 * kMiB), back(4 * kMiB);
  data.fill(1);
  write_now(*channel, 0, data);
  write_now(*channel, 1, data);
  read_now(*channel, 1, back);
  EXPECT_TRUE(data == back);
}

// A store with a write in flight, held until killed. Says on `ready` when it is there.
[[noreturn]] void hold_store(const std::string& folder, std::string_view engine, int ready) {
  auto options = store_options(folder, {8 * kMiB});
  options.engine.name = engine;
  const auto store = make_swap_store(options);
  const auto channel = store->open_channel(IoPriority::streaming);
  AlignedBuffer data(8 * kMiB);
  write_now(*channel, 0, data);
  channel->write(0, data.data(), 2);
  if (write(ready, "1", 1) == 1) pause();
  _exit(1);
}

TEST_P(SwapStoreOnMount, SigkillGivesEveryBlockBack) {
  const std::uint64_t before = free_blocks(folder_.path());
  for (const std::string_view engine : io_engine_names()) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) hold_store(folder_.path(), engine, ready[1]);
    close(ready[1]);
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the child could not make its store";
    close(ready[0]);
    EXPECT_LT(free_blocks(folder_.path()), before);
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    // A ring outlives its process until its last request has ended; the file goes with the ring.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (free_blocks(folder_.path()) != before && std::chrono::steady_clock::now() < deadline) sched_yield();
    EXPECT_EQ(free_blocks(folder_.path()), before) << engine;
  }
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!spillway::testing::mount_in_private()) return 77;
  return RUN_ALL_TESTS();
}
