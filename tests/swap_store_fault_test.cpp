// The swap store over a disk that misbehaves: what is normal is handled, what is not is named.
#include <cerrno>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "support/swap_harness.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using namespace spillway::testing;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kPage = SwapStore::alignment;

class SwapStoreFault : public ::testing::Test {
 protected:
  TestFolder folder_;
  AlignedBuffer data_{40 * kPage};
};

TEST_F(SwapStoreFault, ContinuesShortInterruptedAndReorderedTransfers) {
  const std::vector<std::int64_t> sizes = {kPage, 9 * kPage, 32 * kPage, 33 * kPage};
  for (unsigned seed = 1; seed <= 30; ++seed) {
    auto options = store_options(folder_.path(), sizes);
    options.block_bytes = seed % 2 == 0 ? 8 * kPage : 64 * kPage;
    options.engine.depth = 1 + static_cast<int>(seed % 7);
    const auto store = make_swap_store(
        with_faults(options, {.seed = seed, .short_rate = 0.4, .retry_rate = 0.2, .reorder = true}));
    const auto writer = store->open_channel(IoPriority::streaming), reader = store->open_channel(IoPriority::streaming);
    std::vector<AlignedBuffer> written, back;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      written.emplace_back(sizes[i]).fill(seed * 100 + i);
      back.emplace_back(sizes[i]);
      writer->write(static_cast<int>(i), written[i].data(), i);
    }
    EXPECT_THAT(drain(*writer), UnorderedElementsAre(0, 1, 2, 3)) << seed;
    for (std::size_t i = 0; i < sizes.size(); ++i) reader->read(static_cast<int>(i), back[i].data(), i);
    EXPECT_THAT(drain(*reader), UnorderedElementsAre(0, 1, 2, 3)) << seed;
    for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_TRUE(written[i] == back[i]) << seed << " extent " << i;
  }
}

TEST_F(SwapStoreFault, NamesExtentFolderAndErrnoOfAFailedWrite) {
  auto options = store_options(folder_.path(), {40 * kPage});
  options.block_bytes = 10 * kPage;
  const auto store = make_swap_store(with_faults(options, {.fail_at = 2, .fail_error = EIO}));
  const auto channel = store->open_channel(IoPriority::streaming);
  EXPECT_THAT(io_error_of([&] { write_now(*channel, 0, data_); }),
              StartsWith("[nvme] write tile 0 of block 3 (" + folder_.path() +
                         "): Input/output error, at byte 86016 of the swap file; check the disk"));
  EXPECT_EQ(channel->in_flight(), 0);
  EXPECT_THAT(io_error_of([&] { channel->read(0, data_.data(), 1); }), HasSubstr("its last write did not finish"));
  EXPECT_EQ(store->counters().write_bytes, 0);
}

TEST_F(SwapStoreFault, SaysHowMuchAFullDiskLacks) {
  const auto store = make_swap_store(
      with_faults(store_options(folder_.path(), {40 * kPage}), {.fail_at = 0, .fail_error = ENOSPC}));
  const auto channel = store->open_channel(IoPriority::streaming);
  EXPECT_THAT(io_error_of([&] { write_now(*channel, 0, data_); }),
              AllOf(StartsWith("[nvme] write tile 0 of block 3 (" + folder_.path() +
                               "): No space left on device; needs 160.0 KiB, "),
                    HasSubstr(" free; make room")));
}

TEST_F(SwapStoreFault, ThrowsEachFailureOnceAndReturnsTheOthers) {
  std::atomic<bool> armed{false};
  const auto store = make_swap_store(with_faults(store_options(folder_.path(), {kPage, kPage, kPage}),
                                                 {.fail_at = 1, .fail_error = EIO, .armed = &armed}));
  const auto channel = store->open_channel(IoPriority::streaming);
  for (int i = 0; i < 3; ++i) channel->write(i, data_.data(), 0);
  drain(*channel);
  armed = true;
  for (int i = 0; i < 3; ++i) channel->read(i, data_.data() + i * kPage, static_cast<std::uint64_t>(i));
  std::vector<std::uint64_t> tags;
  int failures = 0;
  while (channel->in_flight() > 0) {
    const std::string error = io_error_of([&] {
      for (const SwapCompletion& completion : channel->completions(true)) tags.push_back(completion.tag);
    });
    if (error != "no error") {
      ++failures;
      EXPECT_THAT(error, HasSubstr("tile 1 of block 3"));
    }
  }
  EXPECT_EQ(failures, 1);
  EXPECT_THAT(tags, UnorderedElementsAre(0, 2));
  EXPECT_EQ(io_error_of([&] { read_now(*channel, 2, data_); }), "no error");
}

TEST_F(SwapStoreFault, GivesUpOnADiskThatMovesNothing) {
  const auto store = make_swap_store(with_faults(store_options(folder_.path(), {2 * kPage}), {.stuck = true}));
  const auto channel = store->open_channel(IoPriority::streaming);
  EXPECT_THAT(io_error_of([&] { write_now(*channel, 0, data_); }), HasSubstr("Input/output error"));
}

TEST_F(SwapStoreFault, AFlippedBitNamesTheExtentTheFolderAndBothChecksums) {
  data_.fill(1);
  AlignedBuffer back(40 * kPage);
  for (const auto& [byte, bit] : {std::pair<std::int64_t, int>{0, 0}, {5 * kPage + 17, 3}, {40 * kPage - 1, 7}}) {
    const auto store = make_swap_store(store_options(folder_.path(), {40 * kPage, 40 * kPage}));
    const auto channel = store->open_channel(IoPriority::streaming);
    write_now(*channel, 0, data_);
    write_now(*channel, 1, data_);
    store->corrupt_for_test(1, byte, bit);
    EXPECT_THAT(io_error_of([&] { read_now(*channel, 1, back); }),
                AllOf(StartsWith("[nvme] read tile 1 of block 3 (" + folder_.path() + "): checksum "),
                      ContainsRegex("written [0-9a-f]{16}, of what was read back [0-9a-f]{16}; the disk, its link or memory corrupts")));
    AlignedBuffer expected(40 * kPage);
    expected.fill(1);
    expected.data()[byte] ^= std::byte{1} << bit;
    EXPECT_TRUE(back == expected) << "exactly one bit differs";
    read_now(*channel, 0, back);  // its neighbour is untouched
    EXPECT_TRUE(back == data_);
    EXPECT_EQ(store->counters().checksum_failures, 1);
    EXPECT_EQ(store->health().front().checksum_failures, 1);
  }
}

TEST_F(SwapStoreFault, WithoutVerifyAFlippedBitIsReadAsItIs) {
  auto options = store_options(folder_.path(), {40 * kPage});
  options.verify = false;
  const auto store = make_swap_store(options);
  const auto channel = store->open_channel(IoPriority::streaming);
  data_.fill(1);
  write_now(*channel, 0, data_);
  store->corrupt_for_test(0, 9, 0);
  AlignedBuffer back(40 * kPage);
  read_now(*channel, 0, back);
  back.data()[9] ^= std::byte{1};
  EXPECT_TRUE(back == data_);
}

// The store's file as others see it: the descriptor whose link points into `folder`.
std::string descriptor_of(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with(folder + "/")) return entry.path();
  }
  return "";
}

TEST_F(SwapStoreFault, ATruncatedFileIsNamed) {
  for (const std::int64_t size : {std::int64_t{0}, 20 * kPage, 79 * kPage + 100}) {
    auto options = store_options(folder_.path(), {40 * kPage, 40 * kPage});
    options.block_bytes = 16 * kPage;
    const auto store = make_swap_store(options);
    const auto channel = store->open_channel(IoPriority::streaming);
    write_now(*channel, 0, data_);
    write_now(*channel, 1, data_);
    ASSERT_EQ(truncate(descriptor_of(folder_.path()).c_str(), size), 0);
    AlignedBuffer back(40 * kPage);
    EXPECT_THAT(io_error_of([&] { read_now(*channel, 1, back); }),
                HasSubstr("[nvme] read tile 1 of block 3 (" + folder_.path() + "): the swap file ends at byte " +
                          std::to_string(size) + ", the extent at 331776; something truncated it"));
    EXPECT_EQ(channel->in_flight(), 0);
  }
}

}  // namespace
}  // namespace spillway
