// Memory of the host device.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "spillway/device.h"
#include "spillway/error.h"

namespace spillway {
namespace {

TEST(HostArena, IsZeroPageAlignedAndPresent) {
  const auto d = make_host_device({.threads = 2});
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  for (const std::int64_t bytes : {std::int64_t{1}, page + 1, std::int64_t{5} << 20}) {
    for (std::byte* const arena : {d->allocate_arena(bytes), d->allocate_pinned(bytes)}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena) % page, 0u);
      std::vector<unsigned char> resident((bytes + page - 1) / page);
      ASSERT_EQ(mincore(arena, bytes, resident.data()), 0);
      EXPECT_THAT(resident, testing::Each(testing::Truly([](unsigned char state) { return state & 1; })));
      for (std::int64_t i = 0; i < bytes; i += 997) ASSERT_EQ(arena[i], std::byte{0});
    }
  }
}

TEST(HostArena, IsWholeWhateverStretchesAreDividedFirst) {
  const auto d = make_host_device({.threads = 2});
  const std::int64_t page = sysconf(_SC_PAGESIZE), bytes = std::int64_t{9} << 20;
  const std::vector<ByteRange> stretches = {{page, page + (5 << 20) + 3}, {4 << 20, bytes}, {bytes, bytes}, {0, 1}};
  std::byte* const arena = d->allocate_pinned(bytes, stretches);
  std::vector<unsigned char> resident(static_cast<std::size_t>((bytes + page - 1) / page));
  ASSERT_EQ(mincore(arena, bytes, resident.data()), 0);
  EXPECT_THAT(resident, testing::Each(testing::Truly([](unsigned char state) { return state & 1; })));
  for (std::int64_t i = 0; i < bytes; i += 997) ASSERT_EQ(arena[i], std::byte{0});
}

// The exit of a child process that runs `f`: its status word.
template <class F>
int in_child(const F& f) {
  const pid_t child = fork();
  if (child == 0) {
    f();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(HostArena, EndsInAPageThatFaults) {
  const auto d = make_host_device({.threads = 2});
  const std::int64_t bytes = 3 * sysconf(_SC_PAGESIZE);
  volatile std::byte* const arena = d->allocate_arena(bytes);
  const auto touch = [&](std::int64_t at) {
    return in_child([=] {
      std::signal(SIGSEGV, [](int) { _exit(42); });
      arena[at] = std::byte{1};
    });
  };
  EXPECT_EQ(WEXITSTATUS(touch(bytes - 1)), 0);
  EXPECT_EQ(WEXITSTATUS(touch(bytes)), 42);
}

TEST(HostArena, SaysWhatTheSystemRefused) {
  const auto d = make_host_device({.threads = 2});
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1} << 60}) {
    try {
      d->allocate_arena(bytes);
      FAIL() << "accepted " << bytes;
    } catch (const MemoryError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("device arena"));
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their own mappings exceed any limit
// What counts against the limit now: the device's own needs (OpenBLAS's buffers) are in it.
std::int64_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmData:", 0) == 0) return std::stoll(line.substr(7)) * 1024;
  }
  return 0;
}

TEST(HostArena, CountsExactlyItsBytesAgainstTheLimitOnData) {
  const int status = in_child([] {
    const auto d = make_host_device({.threads = 1});
    d->allocate_arena(1 << 20);
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>(data_bytes() + (std::int64_t{264} << 20));
    if (setrlimit(RLIMIT_DATA, &limit) != 0) _exit(2);
    try {
      d->allocate_arena(std::int64_t{272} << 20);
      _exit(3);
    } catch (const MemoryError&) {
    }
    try {
      d->allocate_arena(std::int64_t{256} << 20);
    } catch (const MemoryError&) {
      _exit(4);
    }
  });
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

}  // namespace
}  // namespace spillway
