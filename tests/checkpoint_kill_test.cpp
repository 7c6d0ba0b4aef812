// Processes that save in a loop and are killed at any instant: a complete checkpoint is there at all times.
#include <atomic>
#include <chrono>
#include <csignal>
#include <new>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>
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

// Saves step after step, each twice, so that it also replaces the newest; says in `committed` which ones are there. Until
// it is killed.
[[noreturn]] void save_for_ever(const std::string& root, std::int64_t first, std::atomic<std::int64_t>& committed) {
  for (std::int64_t step = first;; ++step) {
    for (int times = 0; times < 2; ++times) {
      if (!save_once(root, model_at(step), step, {.world = 2, .keep = 2}).ok()) _exit(1);
      committed = step;
    }
  }
}

// A number that a child and its parent share.
class SharedNumber {
 public:
  SharedNumber() : memory_(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    number_ = new (memory_) std::atomic<std::int64_t>(0);
  }
  ~SharedNumber() { munmap(memory_, 4096); }
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;

  std::atomic<std::int64_t>& get() const { return *number_; }

 private:
  void* memory_;
  std::atomic<std::int64_t>* number_;
};

TEST(CheckpointKill, WhatWasCommittedIsThereWhateverTheInstant) {
  const TestFolder root;
  const SharedNumber shared;
  std::atomic<std::int64_t>& committed = shared.get();
  std::mt19937 random(3);
  // The instants lie within the first few saves of a child, however long these take here.
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(save_once(root.path(), model_at(1), 1, {.world = 2}).ok());
  const auto save_us = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
  std::uniform_int_distribution<std::int64_t> delay_us(0, 5 * save_us);
  committed = 1;
  // When the disk is slower than it was for the first save, few children come to the end of one; then some more get twice the
  // time.
  const auto go_on = [&](int kills) { return kills < kKills || (committed <= kKills / 5 && kills < 5 * kKills); };
  for (int kill_number = 0; go_on(kill_number); ++kill_number) {
    const pid_t child = fork();
    if (child == 0) save_for_ever(root.path(), committed + 1, committed);
    usleep(static_cast<useconds_t>((kill_number < kKills ? 1 : 2) * delay_us(random)));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "a save failed";

    const Found found = find_newest(root.path());
    ASSERT_TRUE(found.folder) << "after kill " << kill_number;
    Reader reader(*found.folder);
    const std::int64_t step = reader.manifest().run.step;
    ASSERT_GE(step, committed) << "after kill " << kill_number;
    ASSERT_LE(step, committed + 1);
    ASSERT_EQ(wrong_values(reader, model_at(step), 100'000), 0) << *found.folder;
    committed = step;
  }
  EXPECT_GT(committed, kKills / 5) << "killed before they could save: the test tests nothing";
  // The next run removes what the dead ones left.
  const std::int64_t last = committed + 1;
  ASSERT_TRUE(save_once(root.path(), model_at(last), last, {.keep = 1}).ok());
  EXPECT_EQ(names_in(root.path()), std::vector<std::string>{folder_name(last)});
}

}  // namespace
}  // namespace spillway::checkpoint
