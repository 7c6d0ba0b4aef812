// Memory and files that an engine is told of beforehand: the same results, looked up once.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/aligned_buffer.h"
#include "support/io_harness.h"

namespace spillway {
namespace {

using namespace spillway::testing;
using ::testing::HasSubstr;

class IoEngineRegistrationTest : public ::testing::TestWithParam<EngineCase> {};

INSTANTIATE_TEST_SUITE_P(BuiltIn, IoEngineRegistrationTest, ::testing::ValuesIn(engine_cases()), label_of);

TEST_P(IoEngineRegistrationTest, GivesTheSameWithItsMemoryRegistered) {
  constexpr std::int64_t kBytes = 64 * kPage;
  AlignedBuffer registered(kBytes), elsewhere(kBytes);
  const auto plain = GetParam().make(4);
  IoEngineOptions options = GetParam().options(4);
  options.memory = {registered.data() + kPage, kBytes - 2 * kPage};
  const auto engine = make_io_engine(options);
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

// As users of most machines are: no privileges, and a limit on locked memory that is lower than what is to be registered.
TEST(IoUringEngineDeathTest, GivesTheSameToAUserWithALowLimitOnLockedMemory) {
  if (usable_io_engine() != "io_uring") GTEST_SKIP() << "no io_uring here";
  constexpr std::int64_t kBytes = 16 << 20;
  const ScratchFile file;
  AlignedBuffer memory(kBytes), expected(kBytes / 2);
  memory.fill(4);
  std::copy(memory.data(), memory.data() + kBytes / 2, expected.data());
  const auto check = [&] {
    const rlimit limit = {8 << 20, 8 << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(2);
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(3);  // nobody, without capabilities
    for (int i = 0; i < 2; ++i) {
      const auto engine = make_io_engine({.name = "io_uring", .depth = 4, .memory = memory.span(), .one_thread = true});
      if (run(*engine, {IoOp::write, file.fd(), 0, memory.data(), kBytes / 2, 1}).bytes != kBytes / 2) _exit(4);
      if (run(*engine, {IoOp::read, file.fd(), 0, memory.data() + kBytes / 2, kBytes / 2, 2}).bytes != kBytes / 2) _exit(5);
      if (std::memcmp(expected.data(), memory.data() + kBytes / 2, static_cast<std::size_t>(kBytes / 2)) != 0) _exit(6);
    }
    _exit(0);
  };
  EXPECT_EXIT(check(), ::testing::ExitedWithCode(0), "^warning: \\[nvme\\] io_uring: register 16.0 MiB of memory: Cannot allocate memory;[^\n]*now 8.0 MiB[^\n]*\n$");
}

TEST_P(IoEngineRegistrationTest, MovesToAndFromRegisteredFilesAndOthers) {
  const ScratchFile first, second, unregistered;
  IoEngineOptions options = GetParam().options(4);
  options.files = {second.fd(), first.fd()};
  const auto engine = make_io_engine(options);
  AlignedBuffer data(kPage), back(kPage);
  for (const ScratchFile* file : {&first, &unregistered, &second}) {
    data.fill(static_cast<std::uint64_t>(file->fd()));
    ASSERT_EQ(run(*engine, {IoOp::write, file->fd(), kPage, data.data(), kPage, 1}).bytes, kPage);
  }
  for (const ScratchFile* file : {&unregistered, &second, &first}) {
    data.fill(static_cast<std::uint64_t>(file->fd()));
    ASSERT_EQ(run(*engine, {IoOp::read, file->fd(), kPage, back.data(), kPage, 2}).bytes, kPage);
    EXPECT_TRUE(data == back);
    ASSERT_EQ(pread(file->fd(), back.data(), kPage, kPage), kPage);
    EXPECT_TRUE(data == back);
  }
}

// The file is what the descriptor meant when the engine was made, even after it means another.
TEST(IoUringEngine, UsesRegisteredFilesWithoutLookingThemUpAgain) {
  if (usable_io_engine() != "io_uring") GTEST_SKIP() << "no io_uring here";
  const ScratchFile file, other;
  const int fd = dup(file.fd());
  const auto engine = make_io_engine({.name = "io_uring", .depth = 1, .files = {fd}});
  ASSERT_EQ(dup2(other.fd(), fd), fd);
  AlignedBuffer data(kPage), back(kPage);
  data.fill(3);
  EXPECT_EQ(run(*engine, {IoOp::write, fd, 0, data.data(), kPage, 1}).bytes, kPage);
  EXPECT_EQ(pread(file.fd(), back.data(), kPage, 0), kPage) << "written to a file looked up anew";
  EXPECT_TRUE(data == back);
  close(fd);
}

}  // namespace
}  // namespace spillway
