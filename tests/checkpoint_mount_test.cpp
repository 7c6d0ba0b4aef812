// Checkpoints on file systems that are full, or become full, or read-only. Needs root; exits 77 without.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "checkpoint/catalog.h"
#include "checkpoint/folders.h"
#include "checkpoint/reader.h"
#include "spillway/error.h"
#include "support/mounted_folder.h"
#include "support/saved_run.h"
#include "support/syscall_filter.h"
#include "support/thread_ranks.h"

namespace spillway::checkpoint {
namespace {

using namespace spillway::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckpointOnMount : public ::testing::TestWithParam<std::string> {
 protected:
  CheckpointOnMount() {
    large_.tensors.push_back({"large", {std::int64_t{4} << 20}, false});  // 48 MiB of state
    medium_.tensors.push_back({"medium", {400'000}, false});              // 4.6 MiB
  }
  void SetUp() override {
    ASSERT_TRUE(folder_.mounted()) << "cannot mount " << GetParam() << ": " << strerror(errno);
    ASSERT_EQ(save_once(root_, medium_, 1).error, "");
  }
  // Others take all that is left.
  void fill_disk() const {
    std::ofstream hog(folder_.path() + "/hog");
    for (const std::size_t bytes : {65536, 512}) {
      const std::vector<char> chunk(bytes, 'x');
      hog.clear();
      while (hog.write(chunk.data(), static_cast<std::streamsize>(chunk.size())).flush()) {
      }
    }
  }
  // A save during which the disk is filled, once its first item has been written.
  SaveResult save_while_the_disk_fills(std::int64_t step) const {
    SaveResult result;
    run_ranks(1, [&](std::unique_ptr<Communicator> communicator) {
      RankWriter rank(root_, medium_, {.slots = 1, .keep = 1, .tile_elements = 100'000}, std::move(communicator));
      rank.writer.begin(run_at(step));
      for (std::size_t item = 0; item < rank.items.size(); ++item) {
        fill_item(medium_, rank.items[item], rank.writer.acquire(item));
        if (item == 1) fill_disk();
        rank.writer.submit(item);
      }
      result = rank.writer.finish();
    });
    return result;
  }
  bool first_is_intact() const {
    Reader reader(root_ + "/step-00000001");
    return wrong_values(reader, medium_, 10'000) == 0;
  }
  bool only_first_is_there() const { return names_in(root_) == std::vector<std::string>{"step-00000001"}; }

  MountedFolder folder_{GetParam()};
  const std::string root_ = folder_.path() + "/out";
  MadeUpModel large_ = tiny_gpt2();
  MadeUpModel medium_ = tiny_gpt2();
};

INSTANTIATE_TEST_SUITE_P(FileSystem, CheckpointOnMount, ::testing::Values("tmpfs", "ext4"),
                         [](const auto& info) { return info.param; });

TEST_P(CheckpointOnMount, WhatDoesNotFitIsRefusedBeforeTheFirstByte) {
  const std::int64_t free = free_bytes_under(root_);
  EXPECT_THAT(save_once(root_, large_, 2, {.world = 2, .tile_elements = 500'000}).error,
              AllOf(HasSubstr("save step 2 under " + root_ + ": No space left on device; needs 48."), HasSubstr(" free; make room")));
  EXPECT_EQ(free_bytes_under(root_), free);
  EXPECT_TRUE(only_first_is_there());
  EXPECT_TRUE(first_is_intact());
}

TEST_P(CheckpointOnMount, ADiskThatOthersFillMeanwhileDoesNoHarm) {
  const SaveResult result = save_while_the_disk_fills(2);
  EXPECT_EQ(result.error, "");
  Reader reader(result.folder);
  EXPECT_EQ(wrong_values(reader, medium_, 10'000), 0);
}

TEST_P(CheckpointOnMount, WhereSpaceCannotBeReservedADiskThatFillsFailsTheSave) {
  EXPECT_EXIT(
      {
        deny_syscall(SYS_fallocate, EOPNOTSUPP);
        std::fprintf(stderr, "%s\n", save_while_the_disk_fills(2).error.c_str());
        _exit(only_first_is_there() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "write .*state-00001-of-00001.safetensors: No space left on device; make room");
  EXPECT_TRUE(first_is_intact());
}

TEST_P(CheckpointOnMount, AReadOnlyFolderIsRefusedAtStartAndFailsASaveLater) {
  run_ranks(1, [&](std::unique_ptr<Communicator> communicator) {
    RankWriter rank(root_, medium_, {.keep = 1}, std::move(communicator));
    ASSERT_EQ(mount(nullptr, folder_.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0) << strerror(errno);
    EXPECT_THAT(rank.save(run_at(2)).error, AllOf(HasSubstr("Read-only file system"), HasSubstr("writable file system")));
  });
  EXPECT_THROW(save_once(root_, medium_, 3), IoError);
  EXPECT_EQ(find_newest(root_).folder, root_ + "/step-00000001");
  EXPECT_TRUE(only_first_is_there());
  EXPECT_TRUE(first_is_intact());
}

}  // namespace
}  // namespace spillway::checkpoint

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!spillway::testing::mount_in_private()) return 77;
  return RUN_ALL_TESTS();
}
