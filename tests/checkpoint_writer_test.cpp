// What a save leaves behind, in every case: the checkpoint, or nothing and a sentence.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>

#include "checkpoint/catalog.h"
#include "checkpoint/folders.h"
#include "checkpoint/reader.h"
#include "spillway/error.h"
#include "support/saved_run.h"
#include "support/syscall_filter.h"
#include "support/test_folder.h"
#include "support/thread_ranks.h"

namespace spillway::checkpoint {
namespace {

using namespace spillway::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class CheckpointWriter : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return root_.path() + "/" + name; }
  bool holds(const std::string& folder, const MadeUpModel& model) const {
    Reader reader(folder);
    return wrong_values(reader, model, 1000) == 0;
  }

  const TestFolder root_;
  const MadeUpModel model_ = tiny_gpt2("ln_f");
  const MadeUpModel later_ = [this] {
    MadeUpModel model = model_;
    model.seed = 2;
    return model;
  }();
};

TEST_F(CheckpointWriter, SavesAgainAndAgainWithOneSlotAndWithMany) {
  for (const int slots : {1, 2, 100}) {
    run_ranks(1, [&](std::unique_ptr<Communicator> communicator) {
      RankWriter rank(root_.path(), model_, {.slots = slots, .tile_elements = 100}, std::move(communicator));
      EXPECT_FALSE(rank.writer.busy());
      EXPECT_FALSE(rank.writer.poll());
      for (int step = slots; step < slots + 3; ++step) {
        const SaveResult result = rank.save(run_at(step));
        EXPECT_EQ(result.error, "");
        EXPECT_EQ(result.step, step);
        EXPECT_TRUE(holds(result.folder, model_));
        EXPECT_EQ(Reader(result.folder).manifest().run.cursor, run_at(step).cursor);
      }
    });
  }
}

TEST_F(CheckpointWriter, TheResultCanBePolledFor) {
  run_ranks(1, [&](std::unique_ptr<Communicator> communicator) {
    RankWriter rank(root_.path(), model_, {}, std::move(communicator));
    rank.writer.begin(run_at(1));
    EXPECT_TRUE(rank.writer.busy());
    EXPECT_FALSE(rank.writer.poll());  // no item has come
    for (std::size_t item = 0; item < rank.items.size(); ++item) {
      fill_item(model_, rank.items[item], rank.writer.acquire(item));
      rank.writer.submit(item);
    }
    std::optional<SaveResult> result;
    while (!(result = rank.writer.poll())) std::this_thread::yield();
    EXPECT_EQ(result->folder, at("step-00000001"));
    EXPECT_FALSE(rank.writer.busy());
  });
}

TEST_F(CheckpointWriter, KeepsTheNewestAndTouchesNothingElse) {
  std::filesystem::create_directories(at("step-00000000/photographs"));
  std::filesystem::create_directories(at("step-2"));
  std::ofstream(at("step-00000001")) << "a file";
  for (int step = 3; step < 7; ++step) ASSERT_EQ(save_once(root_.path(), model_, step, {.keep = 2}).error, "");
  EXPECT_THAT(names_in(root_.path()), ElementsAre("step-00000000", "step-00000001", "step-00000005", "step-00000006", "step-2"));
  EXPECT_TRUE(std::filesystem::exists(at("step-00000000/photographs")));
}

TEST_F(CheckpointWriter, NeverDeletesWhatItHasJustWritten) {
  for (const int step : {20, 30}) ASSERT_TRUE(save_once(root_.path(), model_, step, {.keep = 2}).ok());
  ASSERT_TRUE(save_once(root_.path(), later_, 5, {.keep = 1}).ok());
  EXPECT_THAT(names_in(root_.path()), ElementsAre("step-00000005"));
}

TEST_F(CheckpointWriter, DamagedOnesAreNeitherCountedNorDeleted) {
  for (const int step : {1, 2, 3}) ASSERT_TRUE(save_once(root_.path(), model_, step).ok());
  std::filesystem::remove(at("step-00000002/state-00001-of-00001.safetensors"));
  ASSERT_TRUE(save_once(root_.path(), model_, 4, {.keep = 2}).ok());
  EXPECT_THAT(names_in(root_.path()), ElementsAre("step-00000002", "step-00000003", "step-00000004"));
}

TEST_F(CheckpointWriter, TheSameStepSavedAgainReplacesTheOld) {
  ASSERT_TRUE(save_once(root_.path(), model_, 8, {.world = 3}).ok());
  const SaveResult again = save_once(root_.path(), later_, 8);
  EXPECT_EQ(again.error, "");
  EXPECT_TRUE(holds(again.folder, later_));
  EXPECT_THAT(names_in(again.folder), ElementsAre("manifest.json", "state-00001-of-00001.safetensors"));
  EXPECT_THAT(names_in(root_.path()), ElementsAre("step-00000008"));
}

TEST_F(CheckpointWriter, WhileItIsReplacedItIsNeverMissing) {
  ASSERT_TRUE(save_once(root_.path(), model_, 8).ok());
  std::atomic<bool> done = false;
  std::int64_t looks = 0, missing = 0;
  std::thread watcher([&] {
    while (!done) {
      ++looks;
      missing += !std::filesystem::exists(at("step-00000008/manifest.json"));
    }
  });
  for (int i = 0; i < 10; ++i) EXPECT_EQ(save_once(root_.path(), i % 2 == 0 ? later_ : model_, 8).error, "");
  done = true;
  watcher.join();
  EXPECT_GT(looks, 0);
  EXPECT_EQ(missing, 0);
}

TEST_F(CheckpointWriter, WhatIsNoCheckpointIsNotReplaced) {
  std::filesystem::create_directories(at("step-00000008/photographs"));
  EXPECT_THAT(save_once(root_.path(), model_, 8).error, AllOf(HasSubstr("step-00000008 is there and is no checkpoint")));
  EXPECT_THAT(names_in(root_.path()), ElementsAre("step-00000008"));
  EXPECT_THAT(names_in(at("step-00000008")), ElementsAre("photographs"));
}

TEST_F(CheckpointWriter, ADamagedCheckpointIsSetAside) {
  ASSERT_TRUE(save_once(root_.path(), model_, 8).ok());
  std::ofstream(at("step-00000008/manifest.json")) << "{";
  const SaveResult result = save_once(root_.path(), later_, 8);
  EXPECT_EQ(result.error, "");
  EXPECT_TRUE(holds(result.folder, later_));
  EXPECT_THAT(names_in(root_.path()), ElementsAre(HasSubstr("damaged-step-00000008-"), "step-00000008"));
}

TEST_F(CheckpointWriter, WhatDeadRunsLeftIsRemovedAndWhatLiveOnesWriteIsNot) {
  const std::string live = ".step-00000001.partial-0000000000000001";
  const std::vector<std::string> others = {".step-00000001.partial-1", ".step-1.partial-0000000000000001", ".git"};
  for (const std::string& name : others) std::filesystem::create_directory(at(name));
  for (const std::string& name : {live, std::string(".step-00000001.partial-0000000000000002"),
                                  std::string(".step-00000002.removed-0000000000000003")}) {
    std::filesystem::create_directories(at(name) + "/inner");
  }
  const Descriptor lock(::open(at(live).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  ASSERT_TRUE(save_once(root_.path(), model_, 8).ok());
  EXPECT_THAT(names_in(root_.path()), UnorderedElementsAre(live, others[0], others[1], others[2], "step-00000008"));
}

TEST_F(CheckpointWriter, ARankThatFailsMakesTheSaveFailOnAllAndLeavesNothing) {
  ASSERT_TRUE(save_once(root_.path(), model_, 1).ok());
  std::vector<std::string> errors(3);
  run_ranks(3, [&](std::unique_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    // What rank 1 calls the root is not on the file system the others share.
    RankWriter writer(rank == 1 ? root_.path() + "/elsewhere" : root_.path(), model_, {.world = 3}, std::move(communicator));
    for (int step = 2; step < 4; ++step) errors[static_cast<std::size_t>(rank)] = writer.save(run_at(step)).error;
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("state-00002-of-00003.safetensors: No such file or directory"), HasSubstr("file system they share"),
                               EndsWith("(on rank 1)")));
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_EQ(errors[2], errors[0]);
  EXPECT_THAT(names_in(root_.path()), ElementsAre("step-00000001"));
}

TEST_F(CheckpointWriter, ARankThatIsLostEndsTheSaveAndLeavesNothing) {
  EXPECT_THROW(run_ranks(3, [&](std::unique_ptr<Communicator> communicator) {
                 const int rank = communicator->rank();
                 RankWriter writer(root_.path(), model_, {.world = 3}, std::move(communicator));
                 if (rank == 1) throw CommError("rank 1 dies");
                 EXPECT_THROW(writer.save(run_at(2)), CommError) << rank;
                 EXPECT_FALSE(writer.writer.busy());
               }),
               CommError);
  EXPECT_THAT(names_in(root_.path()), IsEmpty());
}

TEST_F(CheckpointWriter, ASaveThatIsAbandonedLeavesNothing) {
  run_ranks(1, [&](std::unique_ptr<Communicator> communicator) {
    RankWriter rank(root_.path(), model_, {.slots = 1, .tile_elements = 100}, std::move(communicator));
    rank.writer.begin(run_at(1));
    for (std::size_t item = 0; item < 3; ++item) {
      fill_item(model_, rank.items[item], rank.writer.acquire(item));
      rank.writer.submit(item);
    }
    rank.writer.acquire(3);  // so that the folder is there
    EXPECT_EQ(names_in(root_.path()).size(), 1u);
  });
  EXPECT_THAT(names_in(root_.path()), IsEmpty());
}

TEST_F(CheckpointWriter, ASaveOfWhichAllItemsHaveComeIsFinished) {
  run_ranks(1, [&](std::unique_ptr<Communicator> communicator) {
    RankWriter rank(root_.path(), model_, {.slots = 100}, std::move(communicator));
    rank.writer.begin(run_at(1));
    for (std::size_t item = 0; item < rank.items.size(); ++item) {
      fill_item(model_, rank.items[item], rank.writer.acquire(item));
      rank.writer.submit(item);
    }
  });
  EXPECT_TRUE(holds(at("step-00000001"), model_));
}

TEST_F(CheckpointWriter, PartsThatDoNotMakeUpTheModelAreNoCheckpoint) {
  MadeUpModel larger = model_;
  larger.tensors.push_back({"of nobody", {3}, false});
  run_ranks(1, [&](std::unique_ptr<Communicator> communicator) {
    const std::vector<SnapshotItem> items = items_of(model_, 0, 1, 1000);
    const AlignedBuffer staging(2 * items[0].bytes());
    Writer writer({at("other"), larger.spec, larger.dtype, larger.state, larger.tensors}, std::move(communicator), items, staging.span());
    writer.begin(run_at(1));
    for (std::size_t item = 0; item < items.size(); ++item) {
      writer.acquire(item);
      writer.submit(item);
    }
    EXPECT_THAT(writer.finish().error, HasSubstr("master of of nobody: elements 0 to 3 are there in no piece"));
  });
  EXPECT_THAT(names_in(at("other")), IsEmpty());
}

TEST_F(CheckpointWriter, ARootThatCannotBeUsedIsRefusedOnAllRanksBeforeTheFirstSave) {
  std::ofstream(at("file")) << "x";
  run_ranks(2, [&](std::unique_ptr<Communicator> communicator) {
    try {
      RankWriter(at("file"), model_, {.world = 2}, std::move(communicator));
      ADD_FAILURE() << "not refused";
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(at("file")), EndsWith("(on rank 0)")));
    }
  });
}

TEST_F(CheckpointWriter, MemoryThatHoldsNoItemIsRefused) {
  const AlignedBuffer small(4096);
  try {
    run_ranks(1, [&](std::unique_ptr<Communicator> communicator) {
      Writer({root_.path(), model_.spec, model_.dtype, model_.state, model_.tensors}, std::move(communicator), items_of(model_, 0, 1, 1000), small.span());
    });
    ADD_FAILURE() << "not refused";
  } catch (const MemoryError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("12.0 KiB"), HasSubstr("4.0 KiB"), HasSubstr("spillway.checkpoint_memory")));
  }
}

// With system calls that fail, each in a process of its own, which says what the save ended with.
using CheckpointWriterDeathTest = CheckpointWriter;

TEST_F(CheckpointWriterDeathTest, ADiskThatFailsToSyncFailsTheSave) {
  ASSERT_TRUE(save_once(root_.path(), model_, 1, {.keep = 1}).ok());
  EXPECT_EXIT(
      {
        deny_syscall(SYS_fsync, EIO);
        const SaveResult result = save_once(root_.path(), model_, 2, {.world = 2, .keep = 1});
        std::fprintf(stderr, "%s\n", result.error.c_str());
        _exit(names_in(root_.path()) == std::vector<std::string>{"step-00000001"} ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "write to disk .*state-00001-of-00002.safetensors: Input/output error; check the disk");
  EXPECT_TRUE(holds(at("step-00000001"), model_));
}

TEST_F(CheckpointWriterDeathTest, WithoutDirectWritesItSavesAndWarnsOnce) {
  EXPECT_EXIT(
      {
        deny_setting_flag(O_DIRECT, EINVAL);
        run_ranks(1, [&](std::unique_ptr<Communicator> communicator) {
          RankWriter rank(root_.path(), model_, {}, std::move(communicator));
          if (!rank.save(run_at(1)).ok() || !rank.save(run_at(2)).ok()) _exit(1);
        });
        _exit(holds(at("step-00000001"), model_) && holds(at("step-00000002"), model_) ? 0 : 2);
      },
      ::testing::ExitedWithCode(0), "^[^\n]*refuses O_DIRECT[^\n]*\n$");
}

TEST_F(CheckpointWriterDeathTest, WhereFoldersCannotBeSwappedTheOldOneStays) {
  ASSERT_TRUE(save_once(root_.path(), model_, 1).ok());
  EXPECT_EXIT(
      {
        deny_syscall(SYS_renameat2, EINVAL);
        const SaveResult same = save_once(root_.path(), model_, 1);
        const SaveResult other = save_once(root_.path(), later_, 1);
        std::fprintf(stderr, "%s\n", other.error.c_str());
        _exit(same.ok() && !other.ok() && holds(at("step-00000001"), model_) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "swap the finished folder with .*step-00000001: Invalid argument");
  EXPECT_THAT(names_in(root_.path()), ElementsAre("step-00000001"));
}

}  // namespace
}  // namespace spillway::checkpoint
