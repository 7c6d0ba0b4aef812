// Random work through several channels on several threads, over several paths that misbehave, against a plain reference:
// every byte that is read is the one last written, or an error says what is wrong.
#include <array>
#include <atomic>
#include <cerrno>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/sanitizers.h"
#include "support/swap_harness.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using namespace spillway::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kPage = SwapStore::alignment;
constexpr int kThreads = 3;
constexpr int kExtentsEach = 5;

std::int64_t bytes_of(int extent) { return (1 + extent * 7 % 11) * kPage; }

// What one thread does with the extents that are its own; the reference is the seed of what it last wrote to each.
class Worker {
 public:
  Worker(SwapStore& store, int index, unsigned seed) : store_(store), index_(index), random_(seed * 100 + static_cast<unsigned>(index)) {
    for (int e = 0; e < kExtentsEach; ++e) buffers_.emplace_back(bytes_of(extent(e)));
  }

  void run(int operations) {
    const IoPriority priority = std::array{IoPriority::urgent, IoPriority::streaming, IoPriority::background}[static_cast<std::size_t>(index_)];
    const std::unique_ptr<SwapChannel> channel = store_.open_channel(priority);
    try {
      for (int operation = 0; operation < operations; ++operation) {
        const int e = std::uniform_int_distribution<int>(0, kExtentsEach - 1)(random_);
        while (busy_[static_cast<std::size_t>(e)] != Busy::no) take(*channel, true);
        start(*channel, e);
        take(*channel, false);
      }
    } catch (const IoError& failure) {
      error = failure.what();
    }
    while (channel->in_flight() > 0) {
      try {
        take(*channel, true);
      } catch (const IoError& failure) {
        if (error.empty()) error = failure.what();
      }
    }
  }

  // After a failure: what was written whole is still what is read.
  int verify_all(SwapChannel& channel) {
    int readable = 0;
    for (int e = 0; e < kExtentsEach; ++e) {
      AlignedBuffer& buffer = buffers_[static_cast<std::size_t>(e)];
      if (io_error_of([&] { read_now(channel, extent(e), buffer); }) != "no error") continue;
      ++readable;
      expect_holds(e);
    }
    return readable;
  }

  std::string error;
  int mismatches = 0;

 private:
  enum class Busy { no, reading, writing };

  int extent(int e) const { return index_ * kExtentsEach + e; }

  void start(SwapChannel& channel, int e) {
    const auto i = static_cast<std::size_t>(e);
    const bool write = version_[i] == 0 || std::bernoulli_distribution(0.5)(random_);
    busy_[i] = write ? Busy::writing : Busy::reading;
    if (write) {
      next_[i] = ++versions_;
      buffers_[i].fill(seed_of(next_[i]));
      channel.write(extent(e), buffers_[i].data(), i);
    } else {
      buffers_[i].fill(0);
      channel.read(extent(e), buffers_[i].data(), i);
    }
  }

  void take(SwapChannel& channel, bool wait) {
    for (const SwapCompletion& completion : channel.completions(wait)) {
      const auto i = static_cast<std::size_t>(completion.tag);
      if (busy_[i] == Busy::writing) version_[i] = next_[i];
      if (busy_[i] == Busy::reading) expect_holds(static_cast<int>(i));
      busy_[i] = Busy::no;
    }
  }

  void expect_holds(int e) {
    AlignedBuffer expected(bytes_of(extent(e)));
    expected.fill(seed_of(version_[static_cast<std::size_t>(e)]));
    mismatches += expected == buffers_[static_cast<std::size_t>(e)] ? 0 : 1;
  }

  std::uint64_t seed_of(int version) const { return static_cast<std::uint64_t>(index_ * 1'000'000 + version); }

  SwapStore& store_;
  int index_;
  std::mt19937 random_;
  std::vector<AlignedBuffer> buffers_;
  std::array<Busy, kExtentsEach> busy_{};
  std::array<int, kExtentsEach> version_{}, next_{};
  int versions_ = 0;
};

struct Setting {
  TestFolder a, b;
  SwapStoreOptions options(unsigned seed) const {
    std::vector<std::int64_t> sizes;
    for (int e = 0; e < kThreads * kExtentsEach; ++e) sizes.push_back(bytes_of(e));
    SwapStoreOptions options = store_options(a.path(), sizes);
    options.paths = {{a.path(), 1.0}, {b.path(), 1.0 + seed % 3}};
    options.block_bytes = (1 + seed % 5) * kPage;
    options.engine.name = io_engine_names()[seed % io_engine_names().size()];
    options.engine.depth = 1 + static_cast<int>(seed % 7);
    options.rings = 1 + static_cast<int>(seed % 2);
    options.overlap_events = seed % 4 != 0;
    options.single_submit = seed % 3 == 0;
    return options;
  }
};

std::vector<Worker> work(SwapStore& store, unsigned seed, int operations) {
  std::vector<Worker> workers;
  for (int t = 0; t < kThreads; ++t) workers.emplace_back(store, t, seed);
  std::vector<std::thread> threads;
  for (Worker& worker : workers) threads.emplace_back([&worker, operations] { worker.run(operations); });
  for (std::thread& thread : threads) thread.join();
  return workers;
}

TEST(SwapStoreRandom, ShortInterruptedAndReorderedTransfersChangeNoByte) {
  const Setting setting;
  for (unsigned seed = 1; seed <= fewer_if_sanitized(16, 8); ++seed) {
    const auto store = make_swap_store(with_faults(setting.options(seed), {.seed = seed, .short_rate = 0.3, .retry_rate = 0.2, .reorder = seed % 2 == 0}));
    for (const Worker& worker : work(*store, seed, 40)) {
      EXPECT_EQ(worker.error, "") << seed;
      EXPECT_EQ(worker.mismatches, 0) << seed;
    }
    std::int64_t retries = 0;
    for (const SwapPathHealth& path : store->health()) retries += path.retries;
    EXPECT_GT(retries, 0) << seed;
  }
}

TEST(SwapStoreRandom, AFailureIsNamedAndWhatWasWrittenBeforeIsWhatIsRead) {
  const Setting setting;
  int failed = 0, readable = 0;
  for (unsigned seed = 1; seed <= fewer_if_sanitized(16, 8); ++seed) {
    std::atomic<bool> armed{true};
    // Once for each ring; what is read afterwards is not to fail, too.
    const FaultSchedule faults{.seed = seed, .short_rate = 0.2, .retry_rate = 0.1, .reorder = true, .fail_at = static_cast<int>(seed * 7 % 60),
                               .fail_error = seed % 2 == 0 ? EIO : ENOSPC, .armed = &armed};
    const auto store = make_swap_store(with_faults(setting.options(seed), faults));
    std::vector<Worker> workers = work(*store, seed, 40);
    armed = false;
    const auto channel = store->open_channel(IoPriority::streaming);
    for (Worker& worker : workers) {
      if (!worker.error.empty()) {
        ++failed;
        EXPECT_THAT(worker.error, AllOf(StartsWith("[nvme] "), HasSubstr(" of block 3 ("), HasSubstr(seed % 2 == 0 ? "Input/output error" : "No space left")));
      }
      readable += worker.verify_all(*channel);
      EXPECT_EQ(worker.mismatches, 0) << seed;
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_GT(readable, 0);
}

}  // namespace
}  // namespace spillway
