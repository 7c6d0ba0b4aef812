// The swap store through every built-in engine: round trips, order, what it refuses.
#include <filesystem>
#include <numeric>
#include <random>
#include <semaphore>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/swap_harness.h"
#include "support/syscall_filter.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using namespace spillway::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kPage = SwapStore::alignment;
constexpr std::int64_t kMiB = 1 << 20;

std::vector<std::string> built_in() { return {io_engine_names().begin(), io_engine_names().end()}; }

class SwapStoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<SwapStore> make(SwapStoreOptions options, int depth = 8) {
    options.engine = {GetParam(), depth};
    return make_swap_store(std::move(options));
  }
  TestFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(BuiltIn, SwapStoreTest, ::testing::ValuesIn(built_in()),
                         [](const auto& info) { return info.param; });

TEST_P(SwapStoreTest, RoundTripsExtentsOfEverySizeBlockAndDepth) {
  const std::vector<std::int64_t> sizes = {kPage, 3 * kPage, kMiB, kMiB + kPage, 5 * kMiB + 7 * kPage};
  for (const auto& [block, depth] : {std::pair{kPage, 3}, {16 * kPage, 1}, {kMiB, 8}, {8 * kMiB, 2}}) {
    auto options = store_options(folder_.path(), sizes);
    options.block_bytes = block;
    const auto store = make(options, depth);
    const auto channel = store->open_channel(IoPriority::streaming);
    std::vector<AlignedBuffer> written, back;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      written.emplace_back(sizes[i]).fill(i + 1);
      back.emplace_back(sizes[i]);
      channel->write(static_cast<int>(i), written[i].data(), 10 + i);
    }
    EXPECT_THAT(drain(*channel), UnorderedElementsAre(10, 11, 12, 13, 14));
    for (std::size_t i = 0; i < sizes.size(); ++i) channel->read(static_cast<int>(i), back[i].data(), 20 + i);
    EXPECT_THAT(drain(*channel), UnorderedElementsAre(20, 21, 22, 23, 24));
    for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_TRUE(written[i] == back[i]) << sizes[i] << " by " << block;
    const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    EXPECT_EQ(store->counters().write_bytes, total);
    EXPECT_EQ(store->counters().read_bytes, total);
    EXPECT_EQ(store->counters().checksum_failures, 0);
  }
}

TEST_P(SwapStoreTest, KeepsExtentsBeyond4GiB) {
  constexpr std::int64_t kGap = (std::int64_t{1} << 31) - 4 * kPage;
  if (free_bytes(folder_.path()) < 4 * kGap) GTEST_SKIP() << "needs 8 GiB free in the build folder";
  // The third lies across 2^31, the fifth and last across 2^32.
  const auto store = make(store_options(folder_.path(), {2 * kPage, kGap, 2 * kPage, kGap + 2 * kPage, 2 * kPage}));
  const auto channel = store->open_channel(IoPriority::streaming);
  for (int i = 0; i < 5; i += 2) {
    AlignedBuffer data(2 * kPage);
    data.fill(static_cast<std::uint64_t>(i) + 1);
    write_now(*channel, i, data);
  }
  for (int i = 0; i < 5; i += 2) {
    AlignedBuffer expected(2 * kPage), back(2 * kPage);
    expected.fill(static_cast<std::uint64_t>(i) + 1);
    read_now(*channel, i, back);
    EXPECT_TRUE(expected == back) << i;
  }
}

TEST_P(SwapStoreTest, ReadsTheLastOfManyWritesInRandomOrder) {
  constexpr int kExtents = 12;
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < kExtents; ++i) sizes.push_back((1 + i % 5) * 3 * kPage);
  auto options = store_options(folder_.path(), sizes);
  options.block_bytes = 4 * kPage;
  const auto store = make(options, 4);
  const auto channel = store->open_channel(IoPriority::streaming);
  std::vector<std::uint64_t> version(kExtents, 0);
  std::mt19937 random(7);
  for (std::uint64_t step = 1; step <= 200; ++step) {
    const int extent = std::uniform_int_distribution<int>(0, kExtents - 1)(random);
    AlignedBuffer data(sizes[static_cast<std::size_t>(extent)]), expected(data.size());
    auto& current = version[static_cast<std::size_t>(extent)];
    if (current == 0 || step % 2 == 0) {
      data.fill(current = step);
      write_now(*channel, extent, data);
    } else {
      expected.fill(current);
      read_now(*channel, extent, data);
      ASSERT_TRUE(expected == data) << step;
    }
  }
}

// A lane reads tile i while another writes tile i-1: each channel on its own thread, the semaphores being
// the caller's order between transfers of one extent.
TEST_P(SwapStoreTest, ReaderAndWriterChannelsWorkAtOnce) {
  constexpr int kExtents = 6, kRounds = 8;
  const auto store = make(store_options(folder_.path(), std::vector<std::int64_t>(kExtents, 9 * kPage)));
  const auto writer = store->open_channel(IoPriority::streaming), reader = store->open_channel(IoPriority::streaming);
  std::vector<std::unique_ptr<std::binary_semaphore>> writable, readable;
  for (int i = 0; i < kExtents; ++i) {
    writable.push_back(std::make_unique<std::binary_semaphore>(1));
    readable.push_back(std::make_unique<std::binary_semaphore>(0));
  }
  const auto seed = [](int round, int i) { return static_cast<std::uint64_t>(1 + round * kExtents + i); };
  std::thread writing([&] {
    AlignedBuffer data(9 * kPage);
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kExtents; ++i) {
        data.fill(seed(round, i));
        writable[static_cast<std::size_t>(i)]->acquire();
        write_now(*writer, i, data);
        readable[static_cast<std::size_t>(i)]->release();
      }
    }
  });
  int equal = 0;
  std::thread reading([&] {
    AlignedBuffer data(9 * kPage), expected(9 * kPage);
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kExtents; ++i) {
        readable[static_cast<std::size_t>(i)]->acquire();
        read_now(*reader, i, data);
        writable[static_cast<std::size_t>(i)]->release();
        expected.fill(seed(round, i));
        equal += data == expected ? 1 : 0;
      }
    }
  });
  writing.join();
  reading.join();
  EXPECT_EQ(equal, kExtents * kRounds);
}

TEST_P(SwapStoreTest, CompletionsWithoutWaitingReturnsAndLosesNothing) {
  const auto store = make(store_options(folder_.path(), {kMiB, kMiB}));
  const auto channel = store->open_channel(IoPriority::streaming);
  EXPECT_TRUE(channel->completions(false).empty());
  EXPECT_TRUE(channel->completions(true).empty()) << "nothing is in flight, so nothing is waited for";
  AlignedBuffer a(kMiB), b(kMiB);
  channel->write(0, a.data(), 7);
  channel->write(1, b.data(), 8);
  EXPECT_EQ(channel->in_flight(), 2);
  std::vector<std::uint64_t> tags;
  while (tags.size() < 2) {
    for (const SwapCompletion& completion : channel->completions(false)) tags.push_back(completion.tag);
    EXPECT_EQ(channel->in_flight(), 2 - static_cast<int>(tags.size()));
  }
  EXPECT_THAT(tags, UnorderedElementsAre(7, 8));
}

TEST_P(SwapStoreTest, MayBeClosedWithTransfersInFlight) {
  const auto store = make(store_options(folder_.path(), {4 * kMiB}), 2);
  AlignedBuffer data(4 * kMiB);
  data.fill(1);
  {
    const auto channel = store->open_channel(IoPriority::streaming);
    channel->write(0, data.data(), 1);
  }
  const auto channel = store->open_channel(IoPriority::streaming);
  EXPECT_THAT(io_error_of([&] { channel->read(0, data.data(), 1); }), HasSubstr("its last write did not finish"));
  write_now(*channel, 0, data);
  read_now(*channel, 0, data);
}

TEST_P(SwapStoreTest, LeavesNoNameInTheFolder) {
  const auto store = make(store_options(folder_.path(), {kMiB}));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_EQ(store->engine_name(), GetParam());
}

TEST_P(SwapStoreTest, MeasuresWhatItIsNotTold) {
  const TestFolder other;
  auto options = store_options(folder_.path(), std::vector<std::int64_t>(8, kMiB));
  options.paths = {{folder_.path()}, {other.path()}};
  const auto store = make(options, 0);
  for (const SwapPathHealth& path : store->health()) {
    EXPECT_GE(path.depth, 4);
    EXPECT_LE(path.depth, 128);
  }
  std::vector<int> on_path(2, 0);
  for (int e = 0; e < 8; ++e) ++on_path[static_cast<std::size_t>(store->path_of(e))];
  EXPECT_THAT(on_path, ElementsAre(4, 4)) << "both are the same disk";
}

class SwapStoreRefusal : public ::testing::Test {
 protected:
  std::string refusal(const SwapStoreOptions& options) {
    return io_error_of([&] { make_swap_store(options); });
  }
  TestFolder folder_;
};

TEST_F(SwapStoreRefusal, NamesAFolderThatIsMissingOrNotOne) {
  const std::string missing = folder_.path() + "/missing";
  EXPECT_EQ(refusal(store_options(missing, {kPage})), "[nvme] make swap file (" + missing +
                                                          "): No such file or directory; make the folder or set "
                                                          "nvme_path to another");
  EXPECT_THAT(refusal(store_options("/dev/null", {kPage})), HasSubstr("(/dev/null): Not a directory"));
  EXPECT_THAT(refusal(store_options("/proc/self", {kPage})), HasSubstr("[nvme] make swap file (/proc/self): "));
  EXPECT_THAT(io_error_of([&] { free_bytes(missing); }), AllOf(HasSubstr(missing), HasSubstr("No such file")));
  EXPECT_GT(free_bytes(folder_.path()), 0);
}

TEST_F(SwapStoreRefusal, ChecksTheExtentTable) {
  auto options = store_options(folder_.path(), {2 * kPage, kPage});
  options.extents[1].bytes = 100;
  EXPECT_THAT(refusal(options), HasSubstr("tile 1 of block 3 of 100 bytes is empty or not a multiple of 4096"));
  options.extents[1].bytes = 0;
  EXPECT_THAT(refusal(options), HasSubstr("tile 1 of block 3 of 0 bytes is empty"));
  options.extents[1] = {"tile 1 of block 3", kPage, {1}};
  EXPECT_THAT(refusal(options), HasSubstr("tile 1 of block 3 may lie on path 1 of 1"));
  options = store_options(folder_.path(), {kPage});
  options.block_bytes = 1000;
  EXPECT_THAT(refusal(options), HasSubstr("block size 1000"));
  options = store_options(folder_.path(), {kPage});
  options.rings = 0;
  EXPECT_THAT(refusal(options), HasSubstr("0 rings per path"));
  options.paths.clear();
  EXPECT_THAT(refusal(options), HasSubstr("it has no path"));
}

TEST_F(SwapStoreRefusal, AnExtentNeverWritten) {
  const auto store = make_swap_store(store_options(folder_.path(), {kPage, kPage}));
  const auto channel = store->open_channel(IoPriority::streaming);
  AlignedBuffer data(kPage);
  write_now(*channel, 0, data);
  EXPECT_EQ(io_error_of([&] { channel->read(1, data.data(), 1); }),
            "[nvme] read tile 1 of block 3 (" + folder_.path() + "): it was never written; write it first");
  EXPECT_EQ(channel->in_flight(), 0);
}

// In a child whose kernel refuses flags of opening a file: 0 if a store still keeps its data.
template <class Deny>
[[noreturn]] void keep_data_without(const std::string& folder, Deny deny, bool buffered) {
  deny();
  const auto store = make_swap_store(store_options(folder, {kMiB + kPage}));
  const auto channel = store->open_channel(IoPriority::streaming);
  AlignedBuffer written(kMiB + kPage), back(kMiB + kPage);
  written.fill(1);
  write_now(*channel, 0, written);
  read_now(*channel, 0, back);
  _exit(written == back && store->buffered() == buffered && std::filesystem::is_empty(folder) ? 0 : 1);
}

TEST(SwapStoreDeathTest, FallsBackToANameRemovedAtOnceWhereThereIsNoTmpfile) {
  const TestFolder folder;
  EXPECT_EXIT(keep_data_without(folder.path(), [] { deny_syscall_with_bits(SYS_openat, 2, O_TMPFILE & ~O_DIRECTORY, EOPNOTSUPP); }, false),
              ::testing::ExitedWithCode(0), "^$");
}

TEST(SwapStoreDeathTest, FallsBackLoudlyToThePageCacheWhereThereIsNoDirectIo) {
  const TestFolder folder;
  EXPECT_EXIT(keep_data_without(folder.path(), [] { deny_setting_flag(O_DIRECT, EINVAL); }, true), ::testing::ExitedWithCode(0),
              "^warning: \\[nvme\\] " + folder.path() + " \\([a-z0-9]+\\) refuses O_DIRECT[^\n]*\n$");
}

}  // namespace
}  // namespace spillway
