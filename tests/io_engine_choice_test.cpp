// Which engine is taken: the first that works, or the one asked for by name, which works or is refused with what to change.
#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nvme/io_uring_setup_error.h"
#include "spillway/error.h"
#include "spillway/io_engine.h"
#include "support/syscall_filter.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

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

// A filter may let an engine be made and forbid what it is then used by: found when it is made, when there is another to take.
TEST(MakeIoEngineDeathTest, AutoPassesOverAnEngineThatCouldOnlyBeMade) {
  const std::vector<std::vector<std::pair<long, int>>> filters = {
      {{SYS_io_uring_enter, EPERM}, {SYS_io_submit, EPERM}},
      {{SYS_io_uring_enter, ENOSYS}, {SYS_io_getevents, ENOSYS}},
      {{SYS_io_uring_register, EPERM}, {SYS_io_getevents, EPERM}},
  };
  const std::string warning = io_engine_names().front() == "threads" ? "^$" : "^warning: \\[nvme\\] using I/O engine threads[^\n]*seccomp[^\n]*\n$";
  for (const auto& filter : filters) {
    EXPECT_EXIT(check_without(filter, [] { return make_io_engine({"auto", 4})->name() == "threads"; }), ::testing::ExitedWithCode(0), warning);
  }
}

TEST(MakeIoEngineDeathTest, LibaioNamesTheCallsAFilterForbids) {
  if (!is_built_in("libaio")) GTEST_SKIP() << "built without libaio";
  for (const long call : {SYS_io_setup, SYS_io_submit, SYS_io_getevents}) {
    for (const auto& [error, text] : {std::pair{EPERM, "allow io_setup, io_submit, io_getevents"}, {ENOSYS, "seccomp"}}) {
      EXPECT_EXIT(check_without({{call, error}}, [&] { return refusal({"libaio", 4}).find(text) != std::string::npos; }), ::testing::ExitedWithCode(0), "^$")
          << "system call " << call;
    }
  }
}

// Only io_uring polls; the others say so, once, and do the same without.
TEST(MakeIoEngineDeathTest, EnginesThatDoNotPollSaySo) {
  for (const std::string engine : {"libaio", "threads"}) {
    if (!is_built_in(engine)) continue;
    const auto check = [&] {
      for (const bool submission : {true, false}) {
        make_io_engine({.name = engine, .depth = 4, .submission_polling = submission, .completion_polling = !submission});
      }
      return make_io_engine({engine, 4})->name() == engine;
    };
    EXPECT_EXIT(check_without({}, check), ::testing::ExitedWithCode(0), "^warning: \\[nvme\\] I/O engine " + engine + " does not poll[^\n]*\n$");
  }
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
  EXPECT_THAT(io_uring_setup_error(EPERM, 1), HasSubstr("kernel.io_uring_disabled is 1 here, which allows it to members of the group kernel.io_uring_group"));
  EXPECT_THAT(io_uring_setup_error(EPERM, 0), HasSubstr("seccomp"));
  EXPECT_THAT(io_uring_setup_error(EPERM, -1), HasSubstr("seccomp"));
  EXPECT_THAT(io_uring_setup_error(ENOSYS, 0), HasSubstr("built without io_uring"));
  EXPECT_THAT(io_uring_setup_error(ENOMEM, 0), HasSubstr("RLIMIT_MEMLOCK"));
  EXPECT_THAT(io_uring_setup_error(EMFILE, 0), HasSubstr("RLIMIT_NOFILE"));
}

}  // namespace
}  // namespace spillway
