// Every I/O engine where the kernel refuses, interrupts, cuts short and reorders: byte-exact or a named error, never a hang.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/time.h>
#include <unistd.h>

#include "spillway/error.h"
#include "support/aligned_buffer.h"
#include "support/io_error.h"
#include "support/io_harness.h"
#include "support/kernel_calls.h"

namespace spillway {
namespace {

using namespace spillway::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Past the engines, and past the faults that tests plant in pread() and pwrite().
void write_whole(const ScratchFile& file, const AlignedBuffer& data) {
  ASSERT_EQ(lseek(file.fd(), 0, SEEK_SET), 0);
  ASSERT_EQ(write(file.fd(), data.data(), static_cast<std::size_t>(data.size())), data.size());
}
void read_whole(const ScratchFile& file, const AlignedBuffer& data) {
  ASSERT_EQ(lseek(file.fd(), 0, SEEK_SET), 0);
  ASSERT_EQ(read(file.fd(), data.data(), static_cast<std::size_t>(data.size())), data.size());
}

// Moves random parts of a file back and forth with as many requests in flight as the engine takes, does again what failed, goes
// on where a transfer was short, and compares with a reference in memory: what is read always, and the file at the end.
class Traffic {
 public:
  Traffic(IoEngine& engine, const ScratchFile& file, unsigned seed)
      : engine_(engine), file_(file), random_(seed), reference_(kExtents * kExtentBytes), on_file_(kExtents * kExtentBytes), results_(7) {
    reference_.fill(seed);
    write_whole(file, reference_);
    for (int i = 0; i < engine.depth(); ++i) buffers_.emplace_back(kExtentBytes);
  }

  void run(int transfers) {
    for (std::uint64_t tag = 1; tag <= static_cast<std::uint64_t>(transfers); ++tag) {
      while (static_cast<int>(open_.size()) == engine_.depth()) reap();
      start(tag);
      if (random_() % 3 == 0) engine_.submit();
    }
    while (!open_.empty()) reap();
    read_whole(file_, on_file_);
    EXPECT_TRUE(on_file_ == reference_);
  }

  int failures() const { return failures_; }
  int continued() const { return continued_; }
  int overtaken() const { return overtaken_; }

 private:
  static constexpr std::int64_t kExtents = 64, kExtentBytes = 8 * kPage;

  struct Transfer {
    IoOp op;
    std::int64_t extent, done;
    std::byte* data;
  };

  void start(std::uint64_t tag) {
    Transfer transfer{random_() % 2 == 0 ? IoOp::read : IoOp::write, 0, 0, buffers_.back().data()};
    do {
      transfer.extent = static_cast<std::int64_t>(random_() % kExtents);
    } while (std::ranges::any_of(open_, [&](const auto& other) { return other.second.extent == transfer.extent; }));
    if (transfer.op == IoOp::write) {
      buffers_.back().fill(tag);
      std::memcpy(reference_.data() + transfer.extent * kExtentBytes, transfer.data, kExtentBytes);
    }
    in_use_.push_back(std::move(buffers_.back()));
    buffers_.pop_back();
    open_[tag] = transfer;
    request(tag, transfer);
  }

  void request(std::uint64_t tag, const Transfer& transfer) {
    ASSERT_TRUE(engine_.queue({transfer.op, file_.fd(), transfer.extent * kExtentBytes + transfer.done, transfer.data + transfer.done,
                               kExtentBytes - transfer.done, tag}));
  }

  void reap() {
    const int count = engine_.reap(results_, 1);
    ASSERT_GE(count, 1);
    for (const IoResult& result : std::span(results_).first(static_cast<std::size_t>(count))) finish(result);
  }

  void finish(const IoResult& result) {
    const auto found = open_.find(result.tag);
    ASSERT_NE(found, open_.end()) << "a tag that is not in flight";
    if (found != open_.begin()) ++overtaken_;
    Transfer& transfer = found->second;
    ASSERT_TRUE(result.error == 0 || result.bytes == 0);
    if (result.error != 0) ++failures_;
    transfer.done += result.bytes;
    ASSERT_LE(transfer.done, kExtentBytes);
    if (transfer.done < kExtentBytes) {
      ++continued_;
      return request(result.tag, transfer);
    }
    if (transfer.op == IoOp::read) {
      EXPECT_EQ(std::memcmp(reference_.data() + transfer.extent * kExtentBytes, transfer.data, kExtentBytes), 0) << "extent " << transfer.extent;
    }
    const auto buffer = std::ranges::find_if(in_use_, [&](const AlignedBuffer& other) { return other.data() == transfer.data; });
    buffers_.push_back(std::move(*buffer));
    in_use_.erase(buffer);
    open_.erase(found);
  }

  IoEngine& engine_;
  const ScratchFile& file_;
  std::mt19937 random_;
  AlignedBuffer reference_, on_file_;
  std::vector<AlignedBuffer> buffers_, in_use_;
  std::map<std::uint64_t, Transfer> open_;
  std::vector<IoResult> results_;  // room for fewer than are in flight
  int failures_ = 0, continued_ = 0, overtaken_ = 0;
};

class IoEngineFaultTest : public ::testing::TestWithParam<EngineCase> {};

INSTANTIATE_TEST_SUITE_P(BuiltIn, IoEngineFaultTest, ::testing::ValuesIn(engine_cases()), label_of);

// Those whose requests the kernel queues, and may refuse to.
class KernelQueueFaultTest : public ::testing::TestWithParam<EngineCase> {};

std::vector<EngineCase> kernel_queues() {
  std::vector<EngineCase> cases = engine_cases();
  std::erase_if(cases, [](const EngineCase& engine) { return engine.engine == "threads"; });
  return cases;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KernelQueueFaultTest);  // in a build with no other engine than threads
INSTANTIATE_TEST_SUITE_P(BuiltIn, KernelQueueFaultTest, ::testing::ValuesIn(kernel_queues()), label_of);

// Refusals of the moment, each a few times in a row: of submitting and of waiting.
TEST_P(KernelQueueFaultTest, TriesAgainWhatIsRefusedForTheMoment) {
  const ScratchFile file;
  std::mutex mutex;
  std::mt19937 random(3);
  int refused = 0;
  const auto refuse = [&](std::vector<int> errors) {
    return [&, errors] {
      const std::lock_guard lock(mutex);
      if (random() % 3 != 0) return 0;
      ++refused;
      return errors[random() % errors.size()];
    };
  };
  const bool is_libaio = GetParam().engine == "libaio";
  const WithKernelCalls calls({.submission = refuse(is_libaio ? std::vector{EAGAIN, EINTR} : std::vector{EAGAIN, EBUSY, EINTR}),
                               .waiting = refuse({EINTR})});
  const auto engine = GetParam().make(8);
  Traffic traffic(*engine, file, 4);
  for (int round = 0; round < 20 && refused <= 30; ++round) traffic.run(200);
  EXPECT_EQ(traffic.failures(), 0);
  EXPECT_GT(refused, 30);
}

// A refusal without end: after some patience an error that says so, and nothing hangs, the destructor included.
TEST_P(KernelQueueFaultTest, GivesUpOnARefusalThatDoesNotEnd) {
  const ScratchFile file;
  std::atomic<int> error{0};
  const WithKernelCalls calls({.submission = [&] { return error.load(); }, .waiting = [&] { return error.load(); }});
  for (const auto& [number, text] : {std::pair{EAGAIN, "Resource temporarily unavailable"}, {EBADFD, "File descriptor in bad state"}}) {
    AlignedBuffer data(kPage);
    const auto engine = GetParam().make(2);
    ASSERT_TRUE(engine->queue({IoOp::write, file.fd(), 0, data.data(), kPage, 1}));
    error = number;
    std::vector<IoResult> results(1);
    const std::string failure = io_error_of([&] {
      engine->submit();
      engine->reap(results, 1);
    });
    error = 0;
    if (GetParam().engine == "libaio" && number == EBADFD) {
      EXPECT_EQ(results[0].error, EBADFD) << "libaio means the first request by it";
    } else {
      EXPECT_THAT(failure, AllOf(HasSubstr("[nvme] " + GetParam().engine), HasSubstr(text), HasSubstr("1 requests in flight")));
    }
  }
}

std::atomic<int> alarms{0};

// SIGALRM every millisecond on the thread that owns the engine, without SA_RESTART: every call that waits is interrupted.
TEST_P(IoEngineFaultTest, IsNotImpressedByAStormOfSignals) {
  struct sigaction action{}, before{};
  action.sa_handler = [](int) { ++alarms; };
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  const itimerval every_millisecond = {{0, 1000}, {0, 1000}}, never{};
  alarms = 0;
  ASSERT_EQ(setitimer(ITIMER_REAL, &every_millisecond, nullptr), 0);
  {
    const ScratchFile file;
    const auto engine = GetParam().make(8);
    Traffic traffic(*engine, file, 5);
    for (int round = 0; round < 100 && alarms < 20; ++round) traffic.run(200);
    EXPECT_EQ(traffic.failures(), 0);
  }
  ASSERT_EQ(setitimer(ITIMER_REAL, &never, nullptr), 0);
  ASSERT_EQ(sigaction(SIGALRM, &before, nullptr), 0);
  EXPECT_GE(alarms, 20);
}

// Requests that fail, are cut short, and end in any order, by schedules drawn at random. What fails may have been done.
TEST_P(IoEngineFaultTest, GivesTheSameUnderRandomFaults) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    const ScratchFile file;
    std::mutex mutex;
    std::mt19937 random(seed);
    const auto draw = [&](std::size_t below) {
      const std::lock_guard lock(mutex);
      return static_cast<std::size_t>(random() % below);
    };
    const auto fault = [&](long result, unsigned) -> long {
      if (result <= 0) return result;
      const std::size_t kind = draw(12);
      if (kind == 0) return -EIO;
      if (kind == 1) return -EAGAIN;
      if (kind == 2 && result > kPage) return static_cast<long>(1 + draw(static_cast<std::size_t>(result / kPage - 1))) * kPage;
      return kind == 3 ? 0 : result;
    };
    const WithKernelCalls calls({.submission = [&] { return draw(5) == 0 ? EAGAIN : 0; }, .waiting = [&] { return draw(5) == 0 ? EINTR : 0; },
                                 .result = fault, .order = draw, .every_device_polls = seed % 2 == 0});
    const auto engine = GetParam().make(static_cast<int>(1 + 3 * seed));
    Traffic traffic(*engine, file, seed);
    // What is drawn when depends on threads and on how often a call waits: until enough of each kind has happened.
    const auto enough = [&] { return traffic.failures() > 10 && traffic.continued() > traffic.failures() && traffic.overtaken() > 10; };
    for (int round = 0; round < 20 && !enough(); ++round) traffic.run(100);
    EXPECT_TRUE(enough()) << traffic.failures() << " failed, " << traffic.continued() << " were continued, " << traffic.overtaken() << " overtaken";
  }
}

TEST_P(IoEngineFaultTest, HandsOnWhatEachRequestEndedWith) {
  const ScratchFile file;
  std::deque<long> ends;
  std::mutex mutex;
  const WithKernelCalls calls({.result = [&](long, unsigned) {
                                 const std::lock_guard lock(mutex);
                                 const long end = ends.front();
                                 ends.pop_front();
                                 return end;
                               },
                               .every_device_polls = true});
  const auto engine = GetParam().make(1);
  AlignedBuffer data(4 * kPage);
  for (const long end : {4096L, 0L, 16384L, -static_cast<long>(EIO), -static_cast<long>(ENOSPC), -static_cast<long>(EINTR), -static_cast<long>(ENODEV), 512L}) {
    if (GetParam().engine == "threads" && end == -EINTR) continue;  // of pread() and pwrite() themselves, and so tried again
    ends.push_back(end);
    const IoResult result = run(*engine, {IoOp::write, file.fd(), 0, data.data(), data.size(), 6});
    EXPECT_EQ(result.tag, 6u);
    EXPECT_EQ(result.bytes, std::max(end, 0L));
    EXPECT_EQ(result.error, std::max(-end, 0L));
  }
}

}  // namespace
}  // namespace spillway
