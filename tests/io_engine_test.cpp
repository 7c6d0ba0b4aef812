// Every built-in I/O engine against the same suite, on a real file system with O_DIRECT.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nvme/io_uring_setup_error.h"
#include "spillway/error.h"
#include "spillway/io_engine.h"
#include "support/aligned_buffer.h"
#include "support/syscall_filter.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using ::spillway::testing::AlignedBuffer;
using ::spillway::testing::TestFolder;
using ::testing::HasSubstr;

constexpr std::int64_t kPage = 4096;

class ScratchFile {
 public:
  explicit ScratchFile(int flags = O_DIRECT)
      : fd_(open((folder_.path() + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | flags, 0600)) {
    EXPECT_GE(fd_, 0) << "the build folder's file system has no O_DIRECT";
  }
  ~ScratchFile() { close(fd_); }
  int fd() const { return fd_; }

 private:
  TestFolder folder_;
  int fd_;
};

std::vector<IoResult> reap_all(IoEngine& engine, int count) {
  std::vector<IoResult> results(static_cast<std::size_t>(count));
  EXPECT_EQ(engine.reap(results, count), count);
  std::ranges::sort(results, {}, &IoResult::tag);
  return results;
}

IoResult run(IoEngine& engine, const IoRequest& request) {
  EXPECT_TRUE(engine.queue(request));
  engine.submit();
  return reap_all(engine, 1)[0];
}

class IoEngineTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<IoEngine> make(int depth) { return make_io_engine({GetParam(), depth}); }
};

std::vector<std::string> built_in() { return {io_engine_names().begin(), io_engine_names().end()}; }

INSTANTIATE_TEST_SUITE_P(BuiltIn, IoEngineTest, ::testing::ValuesIn(built_in()),
                         [](const auto& info) { return info.param; });

TEST_P(IoEngineTest, GivesItsNameAndDepth) {
  const auto engine = make(7);
  EXPECT_EQ(engine->name(), GetParam());
  EXPECT_EQ(engine->depth(), 7);
}

TEST_P(IoEngineTest, GivesTheSameWithItsMemoryRegistered) {
  constexpr std::int64_t kBytes = 64 * kPage;
  AlignedBuffer registered(kBytes), elsewhere(kBytes);
  const auto plain = make(4);
  const auto engine = make_io_engine({.name = GetParam(), .depth = 4, .memory = {registered.data() + kPage, kBytes - 2 * kPage}});
  const ScratchFile file;
  registered.fill(5);
  // Within the memory, across both of its ends, and outside.
  for (const auto& [first, pages] : {std::pair{1, 62}, {0, 2}, {62, 2}, {0, 1}, {63, 1}, {17, 3}}) {
    ASSERT_EQ(run(*engine, {IoOp::write, file.fd(), 0, registered.data() + first * kPage, pages * kPage, 1}).bytes, pages * kPage);
    ASSERT_EQ(run(*plain, {IoOp::read, file.fd(), 0, elsewhere.data(), pages * kPage, 2}).bytes, pages * kPage);
    EXPECT_EQ(std::memcmp(elsewhere.data(), registered.data() + first * kPage, static_cast<std::size_t>(pages * kPage)), 0) << first;
    elsewhere.fill(static_cast<std::uint64_t>(first) + 100);
    ASSERT_EQ(run(*plain, {IoOp::write, file.fd(), 0, elsewhere.data(), pages * kPage, 3}).bytes, pages * kPage);
    ASSERT_EQ(run(*engine, {IoOp::read, file.fd(), 0, registered.data() + first * kPage, pages * kPage, 4}).bytes, pages * kPage);
    EXPECT_EQ(std::memcmp(elsewhere.data(), registered.data() + first * kPage, static_cast<std::size_t>(pages * kPage)), 0) << first;
  }
}

// A registered page is what was there when the engine was made: the kernel goes on using it after something else has taken
// its place in the address space.
TEST(IoUringEngine, MovesRegisteredMemoryWithoutLookingItUpAgain) {
  if (usable_io_engine() != "io_uring") GTEST_SKIP() << "no io_uring here";
  const ScratchFile file;
  AlignedBuffer source(kPage);
  source.fill(9);
  ASSERT_EQ(pwrite(file.fd(), source.data(), kPage, 0), kPage);
  void* const memory = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const data = static_cast<std::byte*>(memory);
  const auto engine = make_io_engine({.name = "io_uring", .depth = 1, .memory = {data, kPage}});
  ASSERT_EQ(mmap(memory, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), memory);
  EXPECT_EQ(run(*engine, {IoOp::read, file.fd(), 0, data, kPage, 1}).bytes, kPage);
  EXPECT_TRUE(std::all_of(data, data + kPage, [](std::byte b) { return b == std::byte{0}; })) << "read into memory looked up anew";
  munmap(memory, kPage);
}

TEST(IoUringEngine, GoesOnWithoutRegistrationWhereTheKernelRefusesIt) {
  if (usable_io_engine() != "io_uring") GTEST_SKIP() << "no io_uring here";
  // The kernel registers no memory that is not there.
  void* const reserved = mmap(nullptr, 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(reserved, MAP_FAILED);
  auto* const data = static_cast<std::byte*>(reserved);
  ASSERT_EQ(mprotect(data, kPage, PROT_READ | PROT_WRITE), 0);
  ::testing::internal::CaptureStderr();
  const auto engine = make_io_engine({.name = "io_uring", .depth = 1, .memory = {data, 2 * kPage}});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("ulimit -l"));
  const ScratchFile file;
  std::fill(data, data + kPage, std::byte{7});
  EXPECT_EQ(run(*engine, {IoOp::write, file.fd(), 0, data, kPage, 1}).bytes, kPage);
  std::fill(data, data + kPage, std::byte{0});
  EXPECT_EQ(run(*engine, {IoOp::read, file.fd(), 0, data, kPage, 2}).bytes, kPage);
  EXPECT_EQ(data[kPage - 1], std::byte{7});
  munmap(reserved, 2 * kPage);
}

TEST_P(IoEngineTest, RoundTripsEverySize) {
  const auto engine = make(4);
  const ScratchFile file;
  for (const std::int64_t bytes : {kPage, 3 * kPage, std::int64_t{1} << 20, (5 << 20) + kPage}) {
    AlignedBuffer written(bytes), back(bytes);
    written.fill(static_cast<std::uint64_t>(bytes));
    const IoResult write = run(*engine, {IoOp::write, file.fd(), 0, written.data(), bytes, 8});
    EXPECT_EQ(write.tag, 8u);
    EXPECT_EQ(write.bytes, bytes);
    EXPECT_EQ(write.error, 0);
    const IoResult read = run(*engine, {IoOp::read, file.fd(), 0, back.data(), bytes, 9});
    EXPECT_EQ(read.tag, 9u);
    EXPECT_EQ(read.bytes, bytes);
    EXPECT_TRUE(written == back);
  }
}

TEST_P(IoEngineTest, ReachesOffsetsBeyond32Bits) {
  const auto engine = make(8);
  const ScratchFile file;  // sparse
  const std::vector<std::int64_t> offsets = {0, (std::int64_t{1} << 31) - kPage, std::int64_t{1} << 31,
                                             (std::int64_t{1} << 32) - kPage, std::int64_t{1} << 32,
                                             (std::int64_t{1} << 40) + kPage};
  for (const std::int64_t offset : offsets) {
    AlignedBuffer data(kPage);
    data.fill(static_cast<std::uint64_t>(offset));
    ASSERT_EQ(run(*engine, {IoOp::write, file.fd(), offset, data.data(), kPage, 0}).bytes, kPage) << offset;
  }
  for (const std::int64_t offset : offsets) {
    AlignedBuffer expected(kPage), back(kPage);
    expected.fill(static_cast<std::uint64_t>(offset));
    ASSERT_EQ(pread(file.fd(), back.data(), kPage, offset), kPage);
    EXPECT_TRUE(expected == back) << offset;
    ASSERT_EQ(run(*engine, {IoOp::read, file.fd(), offset, back.data(), kPage, 0}).bytes, kPage);
    EXPECT_TRUE(expected == back) << offset;
  }
}

TEST_P(IoEngineTest, ReturnsTagsThatMatchTheirData) {
  constexpr int kDepth = 16;
  constexpr std::int64_t kSlots = 64;
  const auto engine = make(kDepth);
  const ScratchFile file;
  AlignedBuffer image(kSlots * kPage);
  image.fill(5);
  ASSERT_EQ(pwrite(file.fd(), image.data(), static_cast<std::size_t>(image.size()), 0), image.size());
  std::vector<AlignedBuffer> buffers;
  for (int i = 0; i < kDepth; ++i) buffers.emplace_back(4 * kPage);
  struct Expected {
    std::int64_t offset, bytes;
    std::size_t buffer;
  };
  std::map<std::uint64_t, Expected> open;
  std::vector<std::size_t> free;
  for (std::size_t i = 0; i < kDepth; ++i) free.push_back(i);
  std::mt19937 random(11);
  const auto check = [&](const IoResult& result) {
    const Expected expected = open.at(result.tag);
    open.erase(result.tag);
    ASSERT_EQ(result.bytes, expected.bytes);
    EXPECT_TRUE(std::equal(image.data() + expected.offset, image.data() + expected.offset + expected.bytes,
                           buffers[expected.buffer].data()));
    free.push_back(expected.buffer);
  };
  for (std::uint64_t tag = 1; tag <= 500; ++tag) {
    const std::int64_t pages = std::uniform_int_distribution<std::int64_t>(1, 4)(random);
    const std::int64_t first = std::uniform_int_distribution<std::int64_t>(0, kSlots - pages)(random);
    std::vector<IoResult> results(3);
    while (free.empty()) {
      const int count = engine->reap(results, 1);
      ASSERT_GE(count, 1);
      for (int i = 0; i < count; ++i) check(results[static_cast<std::size_t>(i)]);
    }
    const std::size_t buffer = free.back();
    free.pop_back();
    open[tag << 40] = {first * kPage, pages * kPage, buffer};
    const auto offset = first * kPage, bytes = pages * kPage;
    ASSERT_TRUE(engine->queue({IoOp::read, file.fd(), offset, buffers[buffer].data(), bytes, tag << 40}));
    if (tag % 3 == 0) engine->submit();
  }
  for (const IoResult& result : reap_all(*engine, static_cast<int>(open.size()))) check(result);
  EXPECT_TRUE(open.empty());
}

TEST_P(IoEngineTest, ReportsAShortReadAtTheEndOfTheFileAndNothingPastIt) {
  const auto engine = make(2);
  const ScratchFile file;
  ASSERT_EQ(ftruncate(file.fd(), 3 * kPage + 100), 0);
  AlignedBuffer data(4 * kPage);
  const IoResult across = run(*engine, {IoOp::read, file.fd(), 2 * kPage, data.data(), 4 * kPage, 1});
  EXPECT_EQ(across.bytes, kPage + 100);
  EXPECT_EQ(across.error, 0);
  const IoResult past = run(*engine, {IoOp::read, file.fd(), 8 * kPage, data.data(), kPage, 2});
  EXPECT_EQ(past.bytes, 0);
  EXPECT_EQ(past.error, 0);
}

TEST_P(IoEngineTest, ReportsEachRequestsOwnErrnoAndGoesOn) {
  const auto engine = make(4);
  const ScratchFile file;
  AlignedBuffer data(2 * kPage);
  data.fill(1);
  ASSERT_TRUE(engine->queue({IoOp::write, file.fd(), 0, data.data(), kPage, 1}));
  ASSERT_TRUE(engine->queue({IoOp::write, -1, 0, data.data(), kPage, 2}));
  ASSERT_TRUE(engine->queue({IoOp::write, file.fd(), 100, data.data(), kPage, 3}));
  ASSERT_TRUE(engine->queue({IoOp::write, file.fd(), kPage, data.data(), kPage, 4}));
  engine->submit();
  const auto results = reap_all(*engine, 4);
  EXPECT_EQ(results[0].bytes, kPage);
  EXPECT_EQ(results[1].error, EBADF);
  EXPECT_EQ(results[1].bytes, 0);
  EXPECT_EQ(results[2].error, EINVAL) << "O_DIRECT should refuse offset 100";
  EXPECT_EQ(results[3].bytes, kPage);
  EXPECT_EQ(run(*engine, {IoOp::read, file.fd(), 0, data.data(), kPage, 5}).bytes, kPage);
}

TEST_P(IoEngineTest, TakesNoMoreThanItsDepth) {
  const auto engine = make(3);
  const ScratchFile file;
  AlignedBuffer data(4 * kPage);
  ASSERT_EQ(ftruncate(file.fd(), 4 * kPage), 0);
  const auto request = [&](std::int64_t i) {
    return IoRequest{IoOp::read, file.fd(), i * kPage, data.data() + i * kPage, kPage, static_cast<std::uint64_t>(i)};
  };
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_TRUE(engine->queue(request(i)));
  EXPECT_FALSE(engine->queue(request(3)));
  reap_all(*engine, 1);
  EXPECT_TRUE(engine->queue(request(3)));
  EXPECT_FALSE(engine->queue(request(3)));
  reap_all(*engine, 3);
}

TEST_P(IoEngineTest, NeverWaitsForMoreThanIsInFlightOrFits) {
  const auto engine = make(4);
  const ScratchFile file;
  std::vector<IoResult> results(4);
  EXPECT_EQ(engine->reap(results, 0), 0);
  EXPECT_EQ(engine->reap(results, 4), 0);
  AlignedBuffer data(3 * kPage);
  ASSERT_EQ(ftruncate(file.fd(), kPage), 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine->queue({IoOp::read, file.fd(), 0, data.data() + i * kPage, kPage, 0}));
  }
  EXPECT_EQ(engine->reap(std::span(results).first(2), 3), 2);
  EXPECT_EQ(engine->reap(results, 4), 1);
}

TEST_P(IoEngineTest, MayBeMadeUsedAndDestroyedOnDifferentThreads) {
  const ScratchFile file;
  constexpr std::int64_t kPart = 1 << 20;  // long enough to be under way at the end
  AlignedBuffer written(8 * kPart), back(8 * kPart);
  written.fill(3);
  auto engine = make(8);
  std::thread([&] {
    EXPECT_EQ(run(*engine, {IoOp::write, file.fd(), 0, written.data(), written.size(), 1}).bytes, written.size());
  }).join();
  std::thread([&] {
    for (std::int64_t i = 0; i < 8; ++i) {
      EXPECT_TRUE(engine->queue({IoOp::read, file.fd(), i * kPart, back.data() + i * kPart, kPart, 0}));
    }
    engine->submit();
  }).join();
  engine.reset();  // with requests in flight, which a lane's failure leaves
  std::ranges::fill(back.span(), std::byte{7});
  EXPECT_TRUE(std::ranges::all_of(back.span(), [](std::byte b) { return b == std::byte{7}; }));
}

// The kernel gives an engine the addresses that another thread's engine had a moment ago. In a build with ThreadSanitizer,
// whoever reuses them has to be seen to come after whoever closed what was there.
TEST_P(IoEngineTest, MayTakeThePlaceOfAnotherThreadsEngine) {
  constexpr int kThreads = 4, kEnginesPerThread = 20;
  const ScratchFile file;
  std::vector<AlignedBuffer> pages;
  for (int i = 0; i < kThreads; ++i) {
    pages.emplace_back(kPage);
    pages.back().fill(static_cast<std::uint64_t>(i));
    ASSERT_EQ(pwrite(file.fd(), pages.back().data(), kPage, i * kPage), kPage);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      AlignedBuffer back(kPage);
      for (int engine = 0; engine < kEnginesPerThread; ++engine) {
        std::ranges::fill(back.span(), std::byte{0});
        EXPECT_EQ(run(*make(2), {IoOp::read, file.fd(), i * kPage, back.data(), kPage, 1}).bytes, kPage);
        EXPECT_TRUE(back == pages[static_cast<std::size_t>(i)]) << "thread " << i << ", engine " << engine;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What make_io_engine() throws.
std::string refusal(const IoEngineOptions& options) {
  try {
    make_io_engine(options);
  } catch (const IoError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(MakeIoEngine, NamesWhatIsAllowed) {
  EXPECT_THAT(refusal({"thraeds", 4}), HasSubstr("did you mean \"threads\"?"));
  EXPECT_THAT(refusal({"thraeds", 4}), HasSubstr("allowed: auto, "));
  EXPECT_THAT(refusal({"auto", 0}), HasSubstr("depth 0 is outside the allowed 1 to 4096"));
  EXPECT_THAT(refusal({"threads", 4097}), HasSubstr("depth 4097"));
}

TEST(MakeIoEngine, AutoTakesTheFirstUsable) {
  EXPECT_EQ(make_io_engine({"auto", 4})->name(), usable_io_engine());
  EXPECT_EQ(io_engine_names().back(), "threads");
}

// In a child without the system calls: 0 if `check` holds.
template <class Check>
[[noreturn]] void check_without(const std::vector<std::pair<long, int>>& denied, Check check) {
  for (const auto& [number, error] : denied) spillway::testing::deny_syscall(number, error);
  _exit(check() ? 0 : 1);
}

bool is_built_in(std::string_view engine) {
  return std::ranges::find(io_engine_names(), engine) != io_engine_names().end();
}

// Whatever the build lacks is refused with the package that brings it.
TEST(MakeIoEngine, SaysWhatABuildLacks) {
  for (const auto& [engine, package] : {std::pair{"io_uring", "liburing-dev"}, {"libaio", "libaio-dev"}}) {
    const std::string lack = std::string(engine) + ": not built in (built in: ";
    const std::string text = refusal({engine, 4});
    EXPECT_EQ(text.find(lack) != text.npos, !is_built_in(engine)) << text;
    EXPECT_EQ(text.find("install " + std::string(package)) != text.npos, !is_built_in(engine)) << text;
  }
}

TEST(MakeIoEngineDeathTest, AutoFallsBackLoudlyWhereContainersForbidIoUring) {
  // Where threads is the best engine built in, taking it is no fallback.
  const bool falls_back = io_engine_names().front() != "threads";
  const std::string warning = "^warning: \\[nvme\\] using I/O engine threads[^\n]*seccomp[^\n]*\n$";
  EXPECT_EXIT(check_without({{SYS_io_uring_setup, EPERM}, {SYS_io_setup, ENOSYS}},
                            [] {
                              return make_io_engine({"auto", 4})->name() == "threads" &&
                                     make_io_engine({"auto", 4})->name() == "threads" && usable_io_engine() == "threads";
                            }),
              ::testing::ExitedWithCode(0), falls_back ? warning : "^$");
}

TEST(MakeIoEngineDeathTest, AnEngineAskedForByNameDoesNotFallBack) {
  EXPECT_EXIT(check_without({{SYS_io_uring_setup, EPERM}},
                            [] {
                              const std::string text = refusal({"io_uring", 4});
                              if (!is_built_in("io_uring")) return text.find("not built in") != text.npos;
                              return text.find("Operation not permitted") != text.npos &&
                                     text.find("seccomp") != text.npos;
                            }),
              ::testing::ExitedWithCode(0), "^$");
}

TEST(IoUringSetupError, NamesTheSysctlTheFilterAndTheLimits) {
  EXPECT_THAT(io_uring_setup_error(EPERM, 2), HasSubstr("kernel.io_uring_disabled is 2"));
  EXPECT_THAT(io_uring_setup_error(EPERM, 1), HasSubstr("kernel.io_uring_disabled is 1"));
  EXPECT_THAT(io_uring_setup_error(EPERM, 0), HasSubstr("seccomp"));
  EXPECT_THAT(io_uring_setup_error(EPERM, -1), HasSubstr("seccomp"));
  EXPECT_THAT(io_uring_setup_error(ENOSYS, 0), HasSubstr("built without io_uring"));
  EXPECT_THAT(io_uring_setup_error(ENOMEM, 0), HasSubstr("RLIMIT_MEMLOCK"));
  EXPECT_THAT(io_uring_setup_error(EMFILE, 0), HasSubstr("RLIMIT_NOFILE"));
}

}  // namespace
}  // namespace spillway
