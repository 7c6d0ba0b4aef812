// Processes that save in a loop and are killed at any instant: a complete checkpoint is there at all times.
#include <csignal>
#include <random>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/catalog.h"
#include "checkpoint/folders.h"
#include "checkpoint/reader.h"
#include "support/saved_run.h"
#include "support/test_folder.h"
#include "support/thread_ranks.h"

namespace spillway::checkpoint {
namespace {

using namespace spillway::testing;

constexpr int kKills = 50;

// What the state is at a step.
MadeUpModel model_at(std::int64_t step) {
  MadeUpModel model = tiny_gpt2("ln_f");
  model.seed = static_cast<std::uint64_t>(step);
  return model;
}

// Goes on from the newest checkpoint, and saves step after step until it is killed. Every third step it goes back one, so
// that it also replaces.
[[noreturn]] void save_for_ever(const std::string& root, std::int64_t first) {
  for (std::int64_t step = first;; ++step) {
    for (const std::int64_t saved : {step, step % 3 == 0 ? step - 1 : step}) {
      if (!save_once(root, model_at(saved), saved, {.world = 2, .keep = 2}).ok()) _exit(1);
    }
  }
}

TEST(CheckpointKill, ACompleteCheckpointIsThereWhateverTheInstant) {
  const TestFolder root;
  std::mt19937 random(3);
  std::uniform_int_distribution<int> delay_us(0, 60'000);
  ASSERT_TRUE(save_once(root.path(), model_at(1), 1).ok());
  std::int64_t newest = 1;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    const pid_t child = fork();
    if (child == 0) save_for_ever(root.path(), newest + 1);
    usleep(static_cast<useconds_t>(delay_us(random)));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "a save failed";

    const Found found = find_newest(root.path());
    ASSERT_TRUE(found.folder) << "after kill " << kill_number;
    Reader reader(*found.folder);
    const std::int64_t step = reader.manifest().run.step;
    ASSERT_GE(step, newest);
    ASSERT_EQ(wrong_values(reader, model_at(step), 100'000), 0) << *found.folder;
    newest = step;
  }
  EXPECT_GT(newest, kKills / 5) << "killed before they could save: the test tests nothing";
  // The next run removes what the dead ones left.
  ASSERT_TRUE(save_once(root.path(), model_at(newest + 1), newest + 1, {.keep = 1}).ok());
  EXPECT_EQ(names_in(root.path()), std::vector<std::string>{folder_name(newest + 1)});
}

}  // namespace
}  // namespace spillway::checkpoint
