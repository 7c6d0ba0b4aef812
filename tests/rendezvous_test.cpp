// How ranks of one machine meet at a file: that they do, that nothing stays behind, and what each hears that cannot.
#include "comm/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "spillway/error.h"
#include "support/error_of.h"
#include "support/test_folder.h"

namespace spillway::testing {
namespace {

namespace fs = std::filesystem;
using comm::Launch;
using comm::Launcher;
using comm::Meeting;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kLong = 60;
constexpr std::int64_t kBytes = 4096;

Launch rank_of(int rank, int size) {
  Launch launch;
  launch.launcher = Launcher::file;
  launch.rank = launch.local_rank = rank;
  launch.size = launch.local_size = size;
  return launch;
}

class Rendezvous : public ::testing::Test {
 protected:
  Meeting meet(int rank, int size, double timeout_s = kLong) const { return comm::meet(rank_of(rank, size), path_, kBytes, timeout_s); }
  std::string error_of_meeting(int rank, int size, double timeout_s = kLong) const {
    return error_of<CommError>([&] { meet(rank, size, timeout_s); });
  }

  // All ranks at once, as threads, the last one first.
  void expect_all_meet(int size) const {
    std::vector<std::thread> ranks;
    for (int r = size - 1; r >= 0; --r)
      ranks.emplace_back([this, r, size] {
        const Meeting meeting = meet(r, size);
        EXPECT_EQ(meeting.members.size(), static_cast<std::size_t>(size));
        for (const auto& member : meeting.members) EXPECT_EQ(member.pid, getpid());
        const comm::Mapping reserved = meeting.file.map(meeting.begin, kBytes);
        EXPECT_EQ(std::count(reserved.data(), reserved.data() + kBytes, std::byte{0}), kBytes);
        EXPECT_GE(meeting.end->load(), meeting.begin + kBytes);
      });
    for (std::thread& rank : ranks) rank.join();
    EXPECT_FALSE(fs::exists(path_));
  }

  // A process that is rank 0 of two and waits for the other, from when its file is there.
  pid_t start_waiting_rank_0() const {
    const pid_t child = fork();
    if (child == 0) {
      error_of_meeting(0, 2);
      _exit(0);
    }
    while (!fs::exists(path_)) std::this_thread::yield();
    return child;
  }

  static void end(pid_t child) {
    kill(child, SIGKILL);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }

  std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()); }

  const TestFolder folder_;
  const std::string path_ = (fs::path(folder_.path()) / "ranks").string();
};

TEST_F(Rendezvous, AllRanksMeetWhoeverComesFirst) {
  for (const int size : {1, 2, 5}) expect_all_meet(size);
  EXPECT_EQ(files(), 0);
}

TEST_F(Rendezvous, AFileOfARunThatIsNoMoreIsReplaced) {
  end(start_waiting_rank_0());
  ASSERT_TRUE(fs::exists(path_));
  expect_all_meet(3);
}

TEST_F(Rendezvous, AnotherRunThatMeetsThereIsRefused) {
  const pid_t other = start_waiting_rank_0();
  EXPECT_THAT(error_of_meeting(0, 2), AllOf(HasSubstr(path_), HasSubstr("another run is meeting there; give each run a file of its own")));
  EXPECT_THAT(error_of_meeting(1, 3), HasSubstr("2 ranks meet there, and this is rank 1 of 3"));
  EXPECT_TRUE(fs::exists(path_));
  end(other);
}

TEST_F(Rendezvous, ARankThatIsThereAlreadyIsRefused) {
  std::thread zero([&] { EXPECT_THAT(error_of_meeting(0, 3, 1), HasSubstr("rank 2 of this machine has not started")); });
  std::thread one, twin;
  std::string errors[2];
  one = std::thread([&] { errors[0] = error_of_meeting(1, 3, 1); });
  twin = std::thread([&] { errors[1] = error_of_meeting(1, 3, 1); });
  for (std::thread* thread : {&zero, &one, &twin}) thread->join();
  EXPECT_THAT(errors[0] + errors[1], AllOf(HasSubstr("rank 1 of 3 is there already"), HasSubstr("waited 1 s for the other ranks to start")));
}

TEST_F(Rendezvous, WhoHasNotComeIsNamed) {
  std::thread two([&] { EXPECT_THAT(error_of_meeting(2, 4, 1), HasSubstr("ranks 1, 3 of this machine have not started")); });
  EXPECT_THAT(error_of_meeting(0, 4, 1), AllOf(HasSubstr("[comm] rank 0 of 4 (host "), HasSubstr("waited 1 s for the other ranks to start: "),
                                                 HasSubstr("ranks 1, 3 of this machine have not started; "), HasSubstr(path_)));
  two.join();
  EXPECT_THAT(error_of_meeting(1, 2, 0.01), HasSubstr("rank 0 of this machine has not started"));
  EXPECT_EQ(files(), 0);
}

TEST_F(Rendezvous, WhenOneGivesUpAllDo) {
  std::thread one([&] { EXPECT_THAT(error_of_meeting(1, 3, 2), HasSubstr("rank 2 of this machine has not started")); });
  EXPECT_THAT(error_of_meeting(0, 3), HasSubstr("rank 2 of this machine has not started"));
  one.join();
}

TEST_F(Rendezvous, ARankThatDiesBeforeAllHaveComeIsNamed) {
  const pid_t child = fork();
  if (child == 0) {
    while (!fs::exists(path_)) std::this_thread::yield();
    // Of two that come as rank 1 one is refused, and then the other is there.
    const auto come = [this] {
      error_of_meeting(1, 3);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      kill(getpid(), SIGKILL);
    };
    std::thread twin(come);
    come();
  }
  std::thread reaps([&] { EXPECT_EQ(waitpid(child, nullptr, 0), child); });
  EXPECT_THAT(error_of_meeting(0, 3), AllOf(HasSubstr("rank 1 (host "), HasSubstr("pid " + std::to_string(child) + ") died before all ranks had started")));
  reaps.join();
}

TEST_F(Rendezvous, SomebodysFileIsNotTouched) {
  std::ofstream(path_) << "my only copy of a very important text";
  for (const int rank : {0, 1}) EXPECT_THAT(error_of_meeting(rank, 2), HasSubstr("there is a file already, and none that ranks meet at"));
  std::string text;
  std::getline(std::ifstream(path_), text);
  EXPECT_EQ(text, "my only copy of a very important text");
}

TEST_F(Rendezvous, AFileThatIsRemovedMeanwhileIsAnError) {
  std::thread removes([&] {
    while (!fs::remove(path_)) std::this_thread::yield();
  });
  EXPECT_THAT(error_of_meeting(0, 2), HasSubstr("the file was removed, or replaced by another run"));
  removes.join();
}

TEST_F(Rendezvous, AFolderThatIsNotThereIsNamed) {
  EXPECT_THAT(error_of<CommError>([&] { comm::meet(rank_of(0, 2), path_ + "/not/there", kBytes, kLong); }), AllOf(HasSubstr("/not/there"), HasSubstr("No such file")));
}

TEST_F(Rendezvous, AFullDiskIsAnErrorAtOnceAndLeavesNothing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_action = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1024, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of_meeting(0, 2);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, old_action);
  EXPECT_THAT(error, AllOf(HasSubstr("bytes with the other ranks through " + path_ + ": File too large"), HasSubstr("SPILLWAY_RENDEZVOUS")));
  EXPECT_EQ(files(), 0);
}

TEST(RendezvousPath, IsTheOneGivenOrTheJobs) {
  Launch launch = rank_of(0, 2);
  launch.rendezvous = "here/or/there";
  EXPECT_EQ(comm::rendezvous_path(launch), "here/or/there");
  launch.rendezvous.clear();
  launch.job = "a/b-7";
  const std::string path = comm::rendezvous_path(launch);
  EXPECT_THAT(path, ::testing::EndsWith("/spillway-ranks-" + std::to_string(getuid()) + "-a-b-7"));
  launch.job = "a/b-8";
  EXPECT_NE(comm::rendezvous_path(launch), path);
}

}  // namespace
}  // namespace spillway::testing
