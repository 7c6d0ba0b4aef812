// io_uring on kernels, devices and under limits that this machine does not have: what is refused is done without, loudly and
// with the same results. Each case is a process of its own, for what a process has learned it does not ask again.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <mutex>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "spillway/error.h"
#include "support/aligned_buffer.h"
#include "support/io_error.h"
#include "support/io_harness.h"
#include "support/kernel_calls.h"

namespace spillway {
namespace {

using namespace spillway::testing;

// As in <linux/io_uring.h>.
constexpr unsigned kCompletionPolling = 1u << 0, kSubmissionPolling = 1u << 1, kSubmitAll = 1u << 7, kCoop = 1u << 8, kTaskrunFlag = 1u << 9,
                   kSingleIssuer = 1u << 12, kDefer = 1u << 13;
constexpr unsigned kPolling = kCompletionPolling | kSubmissionPolling;

const EngineCase kShared = {"io_uring"}, kOneThread = {"io_uring", true};

bool is_built_in() { return std::ranges::find(io_engine_names(), "io_uring") != io_engine_names().end(); }

class IoUringRingDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_built_in()) GTEST_SKIP() << "built without io_uring";
  }
};

// In a child: 0 if nothing in `check` fails.
template <class Check>
[[noreturn]] void check_in_child(Check check) {
  check();
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

// Eight pages written, read back, and compared, all in flight at once.
void expect_round_trip(IoEngine& engine) {
  const ScratchFile file;
  AlignedBuffer written(8 * kPage), back(8 * kPage);
  written.fill(2);
  for (const auto& [op, data] : {std::pair{IoOp::write, written.data()}, {IoOp::read, back.data()}}) {
    for (std::int64_t i = 0; i < 8; ++i) {
      EXPECT_TRUE(engine.queue({op, file.fd(), i * kPage, data + i * kPage, kPage, static_cast<std::uint64_t>(i)}));
    }
    engine.submit();
    for (const IoResult& result : reap_all(engine, 8)) EXPECT_EQ(result.bytes, kPage) << "errno " << result.error;
  }
  EXPECT_TRUE(written == back);
}

// A kernel that knows these flags only, and the flags it was tried with.
struct Kernel {
  unsigned known;
  std::vector<unsigned> tried = {};

  int setup(unsigned flags) {
    tried.push_back(flags);
    return (flags & ~known) != 0 ? EINVAL : 0;
  }
};

void expect_ring(unsigned known, const EngineCase& engine, unsigned flags, std::size_t tries) {
  Kernel kernel{known};
  const WithKernelCalls calls({.setup = [&](unsigned asked) { return kernel.setup(asked); }, .every_device_polls = true});
  expect_round_trip(*engine.make(8));
  EXPECT_EQ(kernel.tried.size(), tries);
  EXPECT_EQ(kernel.tried.back(), flags);
  kernel.tried.clear();
  expect_round_trip(*engine.make(8));
  EXPECT_EQ(kernel.tried, std::vector<unsigned>{flags}) << "the ladder was climbed down again";
}

TEST_F(IoUringRingDeathTest, TakesTheRichestFlagsThatTheKernelKnows) {
  constexpr unsigned k519 = kPolling | kSubmitAll | kCoop | kTaskrunFlag, k60 = k519 | kSingleIssuer, k61 = k60 | kDefer;
  const EngineCase polled_submission = {"io_uring", true, true, false};
  struct Case {
    unsigned known;
    const EngineCase& engine;
    unsigned flags;
    std::size_t tries;
  };
  const std::vector<Case> cases = {
      {k61, kOneThread, kSingleIssuer | kDefer | kTaskrunFlag | kSubmitAll, 1},
      {k60, kOneThread, kSingleIssuer | kCoop | kTaskrunFlag | kSubmitAll, 2},
      {k519, kOneThread, kCoop | kTaskrunFlag | kSubmitAll, 3},
      {kPolling | kSubmitAll, kOneThread, kSubmitAll, 4},
      {kPolling, kOneThread, 0, 5},
      {k61, kShared, kCoop | kTaskrunFlag | kSubmitAll, 1},
      {kPolling | kSubmitAll, kShared, kSubmitAll, 2},
      {kPolling, kShared, 0, 3},
      {k61, polled_submission, kSubmissionPolling | kSingleIssuer | kSubmitAll, 1},
      {k519, polled_submission, kSubmissionPolling | kSubmitAll, 2},
      {kPolling, polled_submission, kSubmissionPolling, 3},
  };
  for (const auto& [known, engine, flags, tries] : cases) {
    EXPECT_EXIT(check_in_child([&] { expect_ring(known, engine, flags, tries); }), ::testing::ExitedWithCode(0), "^$") << std::hex << known << " " << engine;
  }
}

TEST_F(IoUringRingDeathTest, GoesWithoutSubmissionPollingWhereTheKernelForbidsIt) {
  for (const auto& [error, text] : {std::pair{EPERM, "Operation not permitted"}, {EINVAL, "Invalid argument"}, {ENOMEM, "Cannot allocate memory"}}) {
    EXPECT_EXIT(check_in_child([&] {
                  const WithKernelCalls calls({.setup = [&](unsigned flags) { return (flags & kSubmissionPolling) != 0 ? error : 0; }});
                  for (const bool one_thread : {false, true, false}) expect_round_trip(*EngineCase{"io_uring", one_thread, true}.make(8));
                }),
                ::testing::ExitedWithCode(0), "^warning: \\[nvme\\] io_uring: submission polling: " + std::string(text) + "; going without[^\n]*CAP_SYS_NICE[^\n]*\n$");
  }
}

// A device that does not poll says so at a request, and not always at the first: those in flight beside it end as they do.
TEST_F(IoUringRingDeathTest, GoesOnWithInterruptsWhereTheDeviceDoesNotPoll) {
  for (const auto& [error, text] : {std::pair{EOPNOTSUPP, "Operation not supported"}, {EINVAL, "Invalid argument"}}) {
    for (const int refuses_from : {0, 1, 6, 11}) {
      for (const bool submission_polling : {false, true}) {
        const auto check = [&] {
          int polled = 0;
          const WithKernelCalls calls({.result = [&](long result, unsigned flags) -> long {
                                         return (flags & kCompletionPolling) != 0 && polled++ >= refuses_from ? -error : result;
                                       },
                                       .every_device_polls = true});
          for (int i = 0; i < 2; ++i) expect_round_trip(*EngineCase{"io_uring", true, submission_polling, true}.make(8));
          EXPECT_GT(polled, refuses_from);
        };
        EXPECT_EXIT(check_in_child(check), ::testing::ExitedWithCode(0),
                    "^warning: \\[nvme\\] io_uring: completion polling: " + std::string(text) + " at a request; going on with interrupts[^\n]*\n$");
      }
    }
  }
}

TEST_F(IoUringRingDeathTest, PollsWhereTheDeviceDoes) {
  EXPECT_EXIT(check_in_child([] {
                int polled = 0;
                const WithKernelCalls calls({.result = [&](long result, unsigned flags) {
                                               polled += (flags & kCompletionPolling) != 0 ? 1 : 0;
                                               return result;
                                             },
                                             .every_device_polls = true});
                expect_round_trip(*EngineCase{"io_uring", true, false, true}.make(8));
                EXPECT_EQ(polled, 16);
              }),
              ::testing::ExitedWithCode(0), "^$");
}

// If there can be no ring without polling, either, that is the engine's failure: told, and told again, and no hang.
TEST_F(IoUringRingDeathTest, SaysWhenThereIsNoRingToGoOnWith) {
  EXPECT_EXIT(check_in_child([] {
                const WithKernelCalls calls({.result = [](long, unsigned flags) -> long { return (flags & kCompletionPolling) != 0 ? -EOPNOTSUPP : 1; },
                                             .setup = [](unsigned flags) { return (flags & kCompletionPolling) != 0 ? 0 : ENOMEM; },
                                             .every_device_polls = true});
                const ScratchFile file;
                AlignedBuffer data(kPage);
                const auto engine = EngineCase{"io_uring", true, false, true}.make(8);
                ASSERT_TRUE(engine->queue({IoOp::write, file.fd(), 0, data.data(), kPage, 1}));
                std::vector<IoResult> results(1);
                EXPECT_THAT(io_error_of([&] { engine->reap(results, 1); }), ::testing::HasSubstr("RLIMIT_MEMLOCK"));
                EXPECT_THAT(io_error_of([&] { engine->reap(results, 1); }), ::testing::HasSubstr("there is no ring any more"));
              }),
              ::testing::ExitedWithCode(0), "completion polling");
}

// A limit on locked memory: on the ring itself, where only kernels before 5.12 count it, and on what is registered.
TEST_F(IoUringRingDeathTest, NamesTheLimitOnLockedMemoryAndTakesTheNextEngine) {
  const std::string next(io_engine_names()[1]);
  EXPECT_EXIT(check_in_child([&] {
                const WithKernelCalls calls({.setup = [](unsigned) { return ENOMEM; }});
                EXPECT_THAT(io_error_of([] { kShared.make(4); }), ::testing::HasSubstr("(ulimit -l, RLIMIT_MEMLOCK, now "));
                EXPECT_EQ(make_io_engine({"auto", 4})->name(), next);
                EXPECT_EQ(usable_io_engine(), next);
              }),
              ::testing::ExitedWithCode(0), "^warning: \\[nvme\\] using I/O engine " + next + ",[^\n]*ulimit -l[^\n]*\n$");
}

TEST_F(IoUringRingDeathTest, GoesWithoutRegistrationWhereALimitForbidsIt) {
  // The first engine still gets what the second does not.
  const auto later = [](int error) { return [error, count = 0]() mutable { return count++ == 0 ? 0 : error; }; };
  const auto check = [](KernelCalls hooks) {
    const WithKernelCalls calls(std::move(hooks));
    const ScratchFile file;
    AlignedBuffer memory(8 * kPage);
    IoEngineOptions options = kOneThread.options(8);
    options.memory = memory.span();
    options.files = {file.fd()};
    for (int i = 0; i < 3; ++i) {
      const auto engine = make_io_engine(options);
      memory.fill(static_cast<std::uint64_t>(i));
      EXPECT_EQ(run(*engine, {IoOp::write, file.fd(), 0, memory.data(), kPage, 1}).bytes, kPage);
      EXPECT_EQ(run(*engine, {IoOp::read, file.fd(), 0, memory.data() + kPage, kPage, 2}).bytes, kPage);
      EXPECT_TRUE(std::equal(memory.data(), memory.data() + kPage, memory.data() + kPage));
      expect_round_trip(*engine);
    }
  };
  EXPECT_EXIT(check_in_child([&] { check({.memory_registration = later(ENOMEM)}); }), ::testing::ExitedWithCode(0),
              "^warning: \\[nvme\\] io_uring: register 32.0 KiB of memory: Cannot allocate memory;[^\n]*ulimit -l[^\n]*\n$");
  EXPECT_EXIT(check_in_child([&] { check({.file_registration = later(EMFILE)}); }), ::testing::ExitedWithCode(0),
              "^warning: \\[nvme\\] io_uring: register 1 open files: Too many open files;[^\n]*ulimit -n[^\n]*\n$");
}

}  // namespace
}  // namespace spillway
