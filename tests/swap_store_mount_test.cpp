// The swap store on file systems of its own: each that is promised, with small and large sectors; full ones; ones whose free
// space can be counted to the block; and a disk that is taken away. Needs root, to mount in a private namespace; exits 77
// without.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sched.h>
#include <sys/ioctl.h>
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
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kMiB = 1 << 20;

struct Disk {
  std::string file_system;
  int sector_bytes;
};

// Once what the file system does behind its answers is done.
std::uint64_t free_blocks(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_EQ(syncfs(fd), 0);
  close(fd);
  struct statvfs status{};
  EXPECT_EQ(statvfs(folder.c_str(), &status), 0);
  return status.f_bfree;
}

// Files are given back in the background, by file systems that take their time and by rings that outlive their process
// until the last request has ended.
std::uint64_t free_blocks_once(const std::string& folder, std::uint64_t expected) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (free_blocks(folder) != expected && std::chrono::steady_clock::now() < deadline) sched_yield();
  return free_blocks(folder);
}

class SwapStoreOnDisk : public ::testing::TestWithParam<Disk> {
 protected:
  void SetUp() override { ASSERT_TRUE(folder_.mounted()) << "cannot mount " << GetParam().file_system << ": " << strerror(errno); }
  MountedFolder folder_{GetParam().file_system, GetParam().sector_bytes};
};

INSTANTIATE_TEST_SUITE_P(FileSystem, SwapStoreOnDisk,
                         ::testing::Values(Disk{"tmpfs", 512}, Disk{"ext4", 512}, Disk{"ext4", 4096}, Disk{"xfs", 512}, Disk{"xfs", 4096},
                                           Disk{"btrfs", 512}, Disk{"btrfs", 4096}),
                         [](const auto& info) { return info.param.file_system + "_" + std::to_string(info.param.sector_bytes); });

TEST_P(SwapStoreOnDisk, KeepsItsDataThroughEveryEngine) {
  const std::vector<std::int64_t> sizes = {4096, 3 * 4096, kMiB + 4096, 3 * kMiB};
  for (const std::string_view engine : io_engine_names()) {
    auto options = store_options(folder_.path(), sizes);
    options.engine.name = engine;
    options.block_bytes = 51 * 4096;
    const auto store = make_swap_store(options);
    EXPECT_TRUE(!store->buffered() || GetParam().file_system == "tmpfs");
    EXPECT_EQ(store->health().front().file_system, GetParam().file_system);
    const auto channel = store->open_channel(IoPriority::streaming);
    for (std::uint64_t round = 1; round <= 2; ++round) {
      std::vector<AlignedBuffer> written;
      for (std::size_t e = 0; e < sizes.size(); ++e) {
        written.emplace_back(sizes[e]).fill(10 * round + e);
        write_now(*channel, static_cast<int>(e), written[e]);
      }
      for (std::size_t e = 0; e < sizes.size(); ++e) {
        AlignedBuffer back(sizes[e]);
        read_now(*channel, static_cast<int>(e), back);
        EXPECT_TRUE(back == written[e]) << engine << " " << e;
      }
    }
  }
}

class SwapStoreOnMount : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(folder_.mounted()) << "cannot mount " << GetParam() << ": " << strerror(errno);
    // The first file may have a file system set room aside that it then keeps for others.
    std::unique_ptr<SwapStore> store = make_swap_store(store_options(folder_.path(), {kMiB}));
    const std::uint64_t with_store = free_blocks(folder_.path());
    store.reset();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (free_blocks(folder_.path()) < with_store + kMiB / 4096 && std::chrono::steady_clock::now() < deadline) sched_yield();
    before_ = free_blocks(folder_.path());
  }
  MountedFolder folder_{GetParam()};
  std::uint64_t before_ = 0;  // free blocks
};

INSTANTIATE_TEST_SUITE_P(FileSystem, SwapStoreOnMount, ::testing::Values("tmpfs", "ext4", "xfs", "btrfs"), [](const auto& info) { return info.param; });

TEST_P(SwapStoreOnMount, AFullDiskIsRefusedAtStartAndGivesBackWhatItTook) {
  const std::int64_t much = (free_bytes(folder_.path()) + 16 * kMiB) / kMiB * kMiB;
  EXPECT_THAT(io_error_of([&] { make_swap_store(store_options(folder_.path(), {much})); }),
              AllOf(StartsWith("[nvme] allocate swap file (" + folder_.path() + "): No space left on device; needs "),
                    ContainsRegex("needs [0-9.]+ MiB, [0-9.]+ MiB free; make room")));
  EXPECT_EQ(free_blocks_once(folder_.path(), before_), before_);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) names.push_back(entry.path().filename());
  EXPECT_THAT(names, ::testing::Each("lost+found"));
}

TEST_P(SwapStoreOnMount, EveryByteIsAllocatedAtStart) {
  const auto store = make_swap_store(store_options(folder_.path(), {4 * kMiB, 4 * kMiB}));
  // Others take all the rest; the store's writes still succeed.
  const int hog = open((folder_.path() + "/hog").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  std::int64_t taken = 0;
  for (const std::int64_t piece : {4 * kMiB, kMiB / 16, std::int64_t{4096}}) {
    for (; posix_fallocate(hog, taken, piece) == 0; taken += piece) {
    }
  }
  close(hog);
  EXPECT_GT(taken, 0);
  const auto channel = store->open_channel(IoPriority::streaming);
  AlignedBuffer data(4 * kMiB), back(4 * kMiB);
  // Again and again: a file system that wrote elsewhere each time would need more room than it has.
  for (std::uint64_t round = 1; round <= 5; ++round) {
    data.fill(round);
    write_now(*channel, 0, data);
    write_now(*channel, 1, data);
    free_blocks(folder_.path());  // has everything reach the disk
    read_now(*channel, 1, back);
    EXPECT_TRUE(data == back) << round;
  }
}

TEST(SwapStoreMount, HasBtrfsOverwriteInPlace) {
  const MountedFolder folder("btrfs");
  ASSERT_TRUE(folder.mounted()) << strerror(errno);
  const auto store = make_swap_store(store_options(folder.path(), {kMiB}));
  const int fd = open(descriptor_of(folder.path()).c_str(), O_RDONLY | O_CLOEXEC);
  int flags = 0;
  ASSERT_EQ(ioctl(fd, FS_IOC_GETFLAGS, &flags), 0) << strerror(errno);
  close(fd);
  EXPECT_NE(flags & FS_NOCOW_FL, 0);
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
  for (const std::string_view engine : io_engine_names()) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) hold_store(folder_.path(), engine, ready[1]);
    close(ready[1]);
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the child could not make its store";
    close(ready[0]);
    EXPECT_LT(free_blocks(folder_.path()), before_);
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(free_blocks_once(folder_.path(), before_), before_) << engine;
  }
}

class SwapStoreLosesDisk : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(FileSystem, SwapStoreLosesDisk, ::testing::Values("ext4", "xfs", "btrfs"), [](const auto& info) { return info.param; });

TEST_P(SwapStoreLosesDisk, NamesTheDiskThatIsGone) {
  for (const IoOp op : {IoOp::read, IoOp::write}) {
    MountedFolder mounted(GetParam());
    ASSERT_TRUE(mounted.mounted()) << strerror(errno);
    const auto store = make_swap_store(store_options(mounted.path(), {kMiB, kMiB}));
    const auto channel = store->open_channel(IoPriority::streaming);
    AlignedBuffer data(kMiB);
    write_now(*channel, 0, data);
    write_now(*channel, 1, data);
    ASSERT_TRUE(mounted.lose_disk());
    EXPECT_THAT(io_error_of([&] { op == IoOp::read ? read_now(*channel, 1, data) : write_now(*channel, 1, data); }),
                AllOf(StartsWith(std::string(op == IoOp::read ? "[nvme] read" : "[nvme] write") + " tile 1 of block 3 (" + mounted.path() + "): "),
                      HasSubstr("the disk is gone, detached or unmounted by force; bring it back")));
    EXPECT_EQ(channel->in_flight(), 0);
    EXPECT_THAT(io_error_of([&] { channel->write(0, data.data(), 1); }), HasSubstr("not begun, since another transfer has failed"));
  }
}

TEST(SwapStoreMount, KeepsItsDataOnOverlay) {
  const MountedFolder folder("overlay");
  ASSERT_TRUE(folder.mounted()) << strerror(errno);
  const auto store = make_swap_store(store_options(folder.path(), {kMiB, kMiB}));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const auto channel = store->open_channel(IoPriority::streaming);
  AlignedBuffer data(kMiB), back(kMiB);
  data.fill(1);
  write_now(*channel, 1, data);
  read_now(*channel, 1, back);
  EXPECT_TRUE(data == back);
}

// A path that outlives its name: mounted over, or unmounted lazily.
TEST(SwapStoreMount, KeepsItsDataWhenTheFolderIsUnmountedLazily) {
  const MountedFolder folder("ext4");
  ASSERT_TRUE(folder.mounted()) << strerror(errno);
  const auto store = make_swap_store(store_options(folder.path(), {kMiB}));
  const auto channel = store->open_channel(IoPriority::streaming);
  AlignedBuffer data(kMiB), back(kMiB);
  data.fill(1);
  write_now(*channel, 0, data);
  ASSERT_EQ(umount2(folder.path().c_str(), MNT_DETACH), 0);
  read_now(*channel, 0, back);
  EXPECT_TRUE(data == back);
}

TEST(SwapStoreMount, APathWithLittleRoomTakesWhatFits) {
  const MountedFolder small("tmpfs"), large("ext4");
  ASSERT_TRUE(small.mounted() && large.mounted()) << strerror(errno);
  auto options = store_options(small.path(), std::vector<std::int64_t>(30, kMiB));
  options.paths = {{small.path(), 4.0}, {large.path(), 1.0}};
  const auto store = make_swap_store(options);
  std::vector<int> on_path(2, 0);
  for (int e = 0; e < 30; ++e) ++on_path[static_cast<std::size_t>(store->path_of(e))];
  EXPECT_EQ(on_path[0], 15) << "16 MiB have room for a header and as many";
  EXPECT_EQ(on_path[1], 15);
  options.extents.resize(60, {"one more tile", kMiB});
  EXPECT_THAT(io_error_of([&] { make_swap_store(options); }),
              AllOf(StartsWith("[nvme] lay out 60.0 MiB in 60 extents: no room for "), HasSubstr("\n  " + small.path()), HasSubstr("\n  " + large.path())));
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!spillway::testing::mount_in_private()) return 77;
  return RUN_ALL_TESTS();
}
