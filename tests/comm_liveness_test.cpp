// The rules by which ranks watch each other: as a state machine on a clock of its own, and as threads with a link in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/backoff.h"
#include "comm/liveness.h"
#include "comm/process_identity.h"
#include "comm/process_watch.h"
#include "comm/watchdog.h"
#include "spillway/error.h"

namespace spillway::testing {
namespace {

using comm::Beat;
using comm::Liveness;
using comm::ProcessIdentity;
using comm::Status;
using comm::Verdict;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kTimeoutS = 10;

// Ranks on machines of their own, so that nobody sees another's process end.
std::vector<ProcessIdentity> strangers(int n) {
  std::vector<ProcessIdentity> members(static_cast<std::size_t>(n));
  for (int r = 0; r < n; ++r) {
    ProcessIdentity& member = members[static_cast<std::size_t>(r)];
    std::snprintf(member.host, sizeof(member.host), "node%d", r);
    std::snprintf(member.machine, sizeof(member.machine), "boot%d", r);
    member.pid = 100 + r;
  }
  return members;
}

Status status_of(std::int64_t step, std::string_view operation, std::string_view object) {
  Status status;
  status.step = step;
  status.operation.set(operation);
  status.object.set(object);
  return status;
}

// A job on a clock of its own: every second all who live tick and talk.
class Star {
 public:
  explicit Star(int n) : dead_(static_cast<std::size_t>(n)) {
    for (int r = 0; r < n; ++r) ranks_.emplace_back(strangers(n), r, kTimeoutS, now_);
    for (int r = 0; r < n; ++r) rank(r).set_status(status_of(r, "reduce", "block " + std::to_string(r)));
  }

  Liveness& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }
  void stop(int r) { dead_[static_cast<std::size_t>(r)] = true; }
  void go_on(int r) { dead_[static_cast<std::size_t>(r)] = false; }

  void pass(int seconds) {
    for (int second = 0; second < seconds; ++second) {
      now_ += 1;
      // Three times: a word to the centre, its answer, and what follows from that.
      for (int round = 0; round < 3; ++round) talk();
    }
  }

 private:
  void talk() {
    const int n = static_cast<int>(ranks_.size());
    for (int from = 0; from < n; ++from) {
      if (dead_[static_cast<std::size_t>(from)]) continue;
      const Beat beat = rank(from).beat();
      for (const int to : rank(from).partners())
        if (rank(from).expects(to) && !dead_[static_cast<std::size_t>(to)]) rank(to).heard(from, beat, now_);
    }
    for (int r = 0; r < n; ++r)
      if (!dead_[static_cast<std::size_t>(r)]) rank(r).tick(now_);
  }

  std::vector<Liveness> ranks_;
  std::vector<bool> dead_;
  double now_ = 0;
};

class LivenessOf : public ::testing::TestWithParam<int> {
 protected:
  const int n_ = GetParam();

  void expect_verdict_of_all(Star& star, int victim, const std::string& text) const {
    for (int r = 0; r < n_; ++r) {
      if (r == victim) continue;
      EXPECT_EQ(star.rank(r).verdict().text.view(), text) << "rank " << r << " of " << n_;
      EXPECT_EQ(star.rank(r).verdict().culprit, victim);
      EXPECT_TRUE(star.rank(r).all_know()) << "rank " << r << " of " << n_;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, LivenessOf, ::testing::Range(2, 9));

TEST_P(LivenessOf, HealthyRanksAreNeverJudged) {
  Star star(n_);
  star.pass(100);
  for (int r = 0; r < n_; ++r) EXPECT_FALSE(star.rank(r).verdict());
}

TEST_P(LivenessOf, ASilentRankIsJudgedAfterTheTimeoutAndNotBefore) {
  for (int victim = 0; victim < n_; ++victim) {
    Star star(n_);
    star.pass(3);
    star.stop(victim);
    star.pass(static_cast<int>(kTimeoutS));
    for (int r = 0; r < n_; ++r) EXPECT_FALSE(star.rank(r).verdict());
    star.pass(2);
    const std::string v = std::to_string(victim);
    expect_verdict_of_all(star, victim, "rank " + v + " (host node" + v + ", pid " + std::to_string(100 + victim) +
                                            ") has not answered for 10 s; last heard at step " + v + " in reduce of block " + v);
  }
}

TEST_P(LivenessOf, ADeathThatAnybodySeesIsKnownToAllAtOnce) {
  for (int victim = 0; victim < n_; ++victim)
    for (int witness = 0; witness < n_; ++witness) {
      if (witness == victim) continue;
      Star star(n_);
      star.pass(1);
      star.stop(victim);
      star.rank(witness).ended(victim);
      star.pass(2);
      const std::string v = std::to_string(victim);
      expect_verdict_of_all(star, victim, "rank " + v + " (host node" + v + ", pid " + std::to_string(100 + victim) +
                                              ") died; last heard at step " + v + " in reduce of block " + v);
    }
}

TEST_P(LivenessOf, AFailureIsQuotedByAllAndTheFailedRankLearnsThatTheyKnow) {
  for (int victim = 0; victim < n_; ++victim) {
    Star star(n_);
    star.pass(1);
    star.rank(victim).failed("disk full");
    EXPECT_FALSE(star.rank(victim).all_know());
    star.pass(1);
    const std::string v = std::to_string(victim);
    const std::string text = "rank " + v + " (host node" + v + ", pid " + std::to_string(100 + victim) + ") failed at step " + v +
                             " in reduce of block " + v + ": disk full";
    expect_verdict_of_all(star, victim, text);
    EXPECT_EQ(star.rank(victim).verdict().text.view(), text);
    EXPECT_TRUE(star.rank(victim).all_know());
  }
}

TEST_P(LivenessOf, TheFirstVerdictStays) {
  Star star(n_);
  star.pass(1);
  star.rank(n_ - 1).failed("first");
  star.pass(1);
  star.rank(0).failed("second");
  star.rank(0).ended(n_ - 1);
  star.pass(20);
  for (int r = 0; r < n_; ++r) EXPECT_THAT(std::string(star.rank(r).verdict().text.view()), HasSubstr(": first"));
}

TEST_P(LivenessOf, WhoIsDoneWaitsForAllAndThenNobodyIsMissed) {
  Star star(n_);
  for (int r = 0; r < n_; ++r) {
    star.rank(r).leave();
    star.pass(30);
    for (int other = 0; other < n_; ++other) {
      EXPECT_FALSE(star.rank(other).verdict());
      EXPECT_EQ(star.rank(other).all_gone(), r == n_ - 1) << other;
    }
  }
  for (int r = 0; r < n_; ++r) {
    star.stop(r);
    for (int other = 0; other < n_; ++other)
      if (other != r) star.rank(other).ended(r);
  }
  star.pass(30);
  for (int r = 0; r < n_; ++r) EXPECT_FALSE(star.rank(r).verdict());
}

TEST_P(LivenessOf, ARankThatDiesWhileItWaitsForOthersIsMissed) {
  Star star(n_);
  star.rank(n_ - 1).leave();
  star.pass(2);
  star.stop(n_ - 1);
  star.pass(12);
  EXPECT_EQ(star.rank(0).verdict().culprit, n_ - 1);
}

TEST_P(LivenessOf, WhoWasStoppedItselfDoesNotAccuseOthers) {
  Star star(n_);
  star.pass(1);
  // The whole machine sleeps.
  for (int r = 0; r < n_; ++r) star.stop(r);
  star.pass(50);
  for (int r = 0; r < n_; ++r) star.go_on(r);
  star.pass(5);
  for (int r = 0; r < n_; ++r) EXPECT_FALSE(star.rank(r).verdict()) << r;
}

TEST(Liveness, WithoutASecondAnswerTheCentreDoesNotSayThatAllKnow) {
  Star star(4);
  star.pass(1);
  star.stop(2);
  star.rank(1).failed("text");
  star.pass(2);
  EXPECT_TRUE(star.rank(0).verdict());
  EXPECT_FALSE(star.rank(0).all_know());
  EXPECT_FALSE(star.rank(1).all_know());
  // It is seen to have ended: nobody else is left to tell.
  star.rank(0).ended(2);
  star.pass(1);
  EXPECT_TRUE(star.rank(1).all_know());
}

TEST(FixedText, CutsWhatDoesNotFit) {
  comm::FixedText<8> text;
  text.set("1234567");
  EXPECT_EQ(text.view(), "1234567");
  text.set("12345678");
  EXPECT_EQ(text.view(), "1234...");
  text.set("");
  EXPECT_TRUE(text.empty());
}

TEST(Status, SaysWhere) {
  EXPECT_EQ(comm::where(Status{}), "the start");
  EXPECT_EQ(comm::where(status_of(-1, "load", "")), "the start in load");
  EXPECT_EQ(comm::where(status_of(17, "reduce", "block 3")), "step 17 in reduce of block 3");
}

TEST(Backoff, SpinsThenYieldsThenSleepsEverLongerUpToABound) {
  comm::Backoff backoff;
  std::vector<int> us;
  for (int i = 0; i < 30; ++i) {
    us.push_back(backoff.next_us());
    backoff.pause();
  }
  const int yields = comm::Backoff::kSpins, sleeps = yields + comm::Backoff::kYields;
  for (int i = 0; i < 30; ++i) EXPECT_EQ(us[static_cast<std::size_t>(i)] < 0 ? -1 : us[static_cast<std::size_t>(i)] > 0, i < yields ? -1 : i >= sleeps) << i;
  EXPECT_TRUE(std::is_sorted(us.begin(), us.end()));
  EXPECT_EQ(us.back(), comm::Backoff::kMaxSleepUs);
}

TEST(ProcessWatch, SeesEachProcessEndOnce) {
  comm::ProcessWatch watch;
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  watch.add(5, child);
  EXPECT_THAT(watch.wait(0), IsEmpty());
  kill(child, SIGKILL);
  EXPECT_THAT(watch.wait(60'000), ElementsAre(5));
  EXPECT_THAT(watch.wait(0), IsEmpty());
  // One that is not even there, and has been reaped.
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  watch.add(6, child);
  EXPECT_THAT(watch.wait(60'000), ElementsAre(6));
}

TEST(ProcessWatch, WakesWhenToldTo) {
  comm::ProcessWatch watch;
  watch.wake();
  EXPECT_THAT(watch.wait(60'000), IsEmpty());
}

// Mailboxes of ranks that are threads.
class Post {
 public:
  explicit Post(int n) : boxes_(static_cast<std::size_t>(n)) {}

  void put(int from, int to, const Beat& beat) {
    const std::lock_guard lock(mutex_);
    boxes_[static_cast<std::size_t>(to)].emplace_back(from, beat);
  }

  std::optional<int> take(int rank, Beat& beat) {
    const std::lock_guard lock(mutex_);
    auto& box = boxes_[static_cast<std::size_t>(rank)];
    if (box.empty()) return std::nullopt;
    const int from = box.front().first;
    beat = box.front().second;
    box.pop_front();
    return from;
  }

 private:
  std::mutex mutex_;
  std::vector<std::deque<std::pair<int, Beat>>> boxes_;
};

// Every other try finds the line busy.
class PostLink final : public comm::BeatLink {
 public:
  PostLink(Post& post, int rank) : post_(post), rank_(rank) {}
  bool send(int to, const Beat& beat) override {
    busy_ = !busy_;
    if (busy_) return false;
    post_.put(rank_, to, beat);
    return true;
  }
  std::optional<int> receive(Beat& beat) override {
    if (broken) throw CommError("line cut");
    return post_.take(rank_, beat);
  }

  std::atomic<bool> broken{false};

 private:
  Post& post_;
  const int rank_;
  bool busy_ = false;
};

struct Watched {
  explicit Watched(int n, double timeout_s = 60) : post(n) {
    for (int r = 0; r < n; ++r) links.push_back(std::make_unique<PostLink>(post, r));
    for (int r = 0; r < n; ++r)
      dogs.push_back(std::make_unique<comm::Watchdog>(strangers(n), r, timeout_s, *links[static_cast<std::size_t>(r)]));
  }

  Post post;
  std::vector<std::unique_ptr<PostLink>> links;
  std::vector<std::unique_ptr<comm::Watchdog>> dogs;
};

std::string error_of(const comm::Watchdog& dog) {
  for (;;) {
    try {
      dog.check();
    } catch (const CommError& error) {
      return error.what();
    }
    std::this_thread::yield();
  }
}

TEST(Watchdog, RanksThatAreDoneAllLeave) {
  Watched ranks(3);
  std::vector<std::thread> threads;
  std::vector<int> left(3);
  for (std::size_t r = 0; r < 3; ++r) threads.emplace_back([&, r] { left[r] = ranks.dogs[r]->leave(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(left, std::vector<int>(3, 1));
}

TEST(Watchdog, AFailureReachesAllAndEndsTheirLeaving) {
  Watched ranks(3);
  std::thread leaves([&] { EXPECT_FALSE(ranks.dogs[0]->leave()); });
  ranks.dogs[1]->note_step(4);
  ranks.dogs[1]->note_operation("update", "tile 9");
  ranks.dogs[1]->fail("no memory");
  leaves.join();
  for (const auto& dog : ranks.dogs) {
    EXPECT_EQ(error_of(*dog), "[comm] rank 1 (host node1, pid 101) failed at step 4 in update of tile 9: no memory");
    EXPECT_THROW(dog->enter(), CommError);
  }
}

TEST(Watchdog, AVerdictWaitsForThoseInsideTheTransport) {
  Watched ranks(2);
  std::optional<comm::Watchdog::Entry> inside = ranks.dogs[0]->enter();
  std::thread fails([&] { ranks.dogs[1]->fail("gone wrong"); });
  fails.join();
  // Rank 1 returns when rank 0 knows. Rank 0 shows it only when its own thread is out.
  EXPECT_NO_THROW(ranks.dogs[0]->check());
  inside.reset();
  EXPECT_THAT(error_of(*ranks.dogs[0]), HasSubstr("gone wrong"));
}

TEST(Watchdog, ASilentRankIsFoundByTheOthers) {
  Watched ranks(3, 0.5);
  ranks.dogs[2].reset();
  for (const int r : {0, 1})
    EXPECT_EQ(error_of(*ranks.dogs[static_cast<std::size_t>(r)]),
              "[comm] rank 2 (host node2, pid 102) has not answered for 0.5 s; last heard at the start");
}

TEST(Watchdog, ABrokenLinkEndsTheRank) {
  Watched ranks(2);
  ranks.links[1]->broken = true;
  EXPECT_EQ(error_of(*ranks.dogs[1]), "[comm] the watch over the other ranks failed: line cut");
  EXPECT_FALSE(ranks.dogs[1]->leave());
}

}  // namespace
}  // namespace spillway::testing
