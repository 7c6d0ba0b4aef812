// What the suites of the I/O engines share: the engines and the ways to use them, a file, and requests one by one.
#pragma once

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "spillway/io_engine.h"
#include "support/test_folder.h"

namespace spillway::testing {

inline constexpr std::int64_t kPage = 4096;

// An engine and how it is used: every suite holds for each of them.
struct EngineCase {
  std::string engine;
  bool one_thread = false, submission_polling = false, completion_polling = false;

  IoEngineOptions options(int depth) const {
    IoEngineOptions options = {.name = engine, .depth = depth};
    options.one_thread = one_thread;
    options.submission_polling = submission_polling;
    options.completion_polling = completion_polling;
    return options;
  }
  std::unique_ptr<IoEngine> make(int depth) const { return make_io_engine(options(depth)); }

  std::string label() const {
    return engine + (one_thread ? "_one_thread" : "") + (submission_polling ? "_submission_polling" : "") + (completion_polling ? "_completion_polling" : "");
  }
  friend std::ostream& operator<<(std::ostream& out, const EngineCase& engine) { return out << engine.label(); }
};

// Those built in; io_uring tied to one thread and with each kind of polling, too, which the others know nothing of.
inline std::vector<EngineCase> engine_cases() {
  std::vector<EngineCase> cases;
  for (const std::string_view name : io_engine_names()) {
    const std::string engine(name);
    cases.push_back({engine});
    if (engine != "io_uring") continue;
    cases.push_back({engine, true});
    for (const bool one_thread : {false, true}) {
      cases.push_back({engine, one_thread, true, false});
      cases.push_back({engine, one_thread, false, true});
    }
    cases.push_back({engine, true, true, true});
  }
  return cases;
}

// Each as the swap store uses it: for what takes long.
inline std::vector<EngineCase> engines_of_one_thread() {
  std::vector<EngineCase> cases;
  for (const std::string_view name : io_engine_names()) cases.push_back({std::string(name), true});
  return cases;
}

inline std::string label_of(const ::testing::TestParamInfo<EngineCase>& info) { return info.param.label(); }

class ScratchFile {
 public:
  explicit ScratchFile(int flags = O_DIRECT) : fd_(open((folder_.path() + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | flags, 0600)) {
    EXPECT_GE(fd_, 0) << "the build folder's file system has no O_DIRECT";
  }
  ~ScratchFile() { close(fd_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  int fd() const { return fd_; }

 private:
  TestFolder folder_;
  int fd_;
};

// In the order of tags.
inline std::vector<IoResult> reap_all(IoEngine& engine, int count) {
  std::vector<IoResult> results(static_cast<std::size_t>(count));
  EXPECT_EQ(engine.reap(results, count), count);
  std::ranges::sort(results, {}, &IoResult::tag);
  return results;
}

inline IoResult run(IoEngine& engine, const IoRequest& request) {
  EXPECT_TRUE(engine.queue(request));
  engine.submit();
  return reap_all(engine, 1)[0];
}

}  // namespace spillway::testing
