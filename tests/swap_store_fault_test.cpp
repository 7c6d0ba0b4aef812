// The swap store over a disk that misbehaves: what is normal is handled, what is not is named.
#include <cerrno>
#include <fstream>
#include <span>
#include <vector>

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

// What somebody else does to the store's file: bytes at an offset of it.
void overwrite(const std::string& folder, std::int64_t offset, std::span<const std::byte> bytes) {
  std::ofstream file(descriptor_of(folder), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.flush().good());
}

TEST_F(SwapStoreFault, AWriteThatTheDiskLostIsToldFromCorruption) {
  AlignedBuffer newer(4 * kPage), back(4 * kPage);
  AlignedBuffer older(4 * kPage);
  older.fill(1);
  newer.fill(2);
  for (const bool first : {false, true}) {
    const auto store = make_swap_store(store_options(folder_.path(), {4 * kPage, 4 * kPage}));
    const auto channel = store->open_channel(IoPriority::streaming);
    if (!first) write_now(*channel, 1, older);
    write_now(*channel, 1, newer);
    const AlignedBuffer nothing(4 * kPage);
    std::ranges::fill(nothing.span(), std::byte{0});
    overwrite(folder_.path(), kHeader + 4 * kPage, first ? nothing.span() : older.span());
    EXPECT_THAT(io_error_of([&] { read_now(*channel, 1, back); }),
                AllOf(StartsWith("[nvme] read tile 1 of block 3 (" + folder_.path() + "): checksum of what was written "),
                      HasSubstr(first ? "these are zeros, as before the first write" : "these are the bytes of the version before"),
                      HasSubstr("the disk confirmed a write that it has lost")));
  }
}

TEST_F(SwapStoreFault, AnotherRunsFileIsToldByItsHeader) {
  const TestFolder other_folder;
  auto options = store_options(folder_.path(), {4 * kPage});
  options.contents = "rank 0 of 2";
  const auto store = make_swap_store(options);
  auto other = store_options(other_folder.path(), {4 * kPage});
  other.contents = "rank 5 of 7";
  const auto other_store = make_swap_store(other);
  const auto channel = store->open_channel(IoPriority::streaming), other_channel = other_store->open_channel(IoPriority::streaming);
  AlignedBuffer data(4 * kPage), back(4 * kPage);
  data.fill(1);
  write_now(*channel, 0, data);
  data.fill(2);
  write_now(*other_channel, 0, data);
  std::ifstream from(descriptor_of(other_folder.path()), std::ios::binary);
  std::vector<char> bytes(5 * kPage);
  ASSERT_TRUE(from.read(bytes.data(), static_cast<std::streamsize>(bytes.size())).good());
  overwrite(folder_.path(), 0, std::as_bytes(std::span(bytes)));
  EXPECT_THAT(io_error_of([&] { read_now(*channel, 0, back); }),
              AllOf(StartsWith("[nvme] read tile 0 of block 3 (" + folder_.path() + "): checksum of what was written "),
                    ContainsRegex("the file is another run's: it was made for run [0-9a-f]{16}, store [0-9]+, path 1 of 1, rank 0 of 2, and its "
                                  "header is now that of run [0-9a-f]{16}, store [0-9]+, path 1 of 1, rank 5 of 7;")));
}

TEST_F(SwapStoreFault, AFileThatWasOverwrittenFromTheStartIsTold) {
  const auto store = make_swap_store(store_options(folder_.path(), {4 * kPage}));
  const auto channel = store->open_channel(IoPriority::streaming);
  AlignedBuffer back(4 * kPage);
  write_now(*channel, 0, data_);
  data_.fill(9);
  overwrite(folder_.path(), 0, data_.span().first(5 * kPage));
  EXPECT_THAT(io_error_of([&] { read_now(*channel, 0, back); }), HasSubstr("is overwritten too: find out what writes to this disk"));
}

TEST_F(SwapStoreFault, SaysThatTheDiskIsGoneOrReadOnly) {
  for (const auto& [error, text] : {std::pair<int, const char*>{ENODEV, "No such device: the disk is gone, detached or unmounted by force"},
                                    {ENXIO, "No such device or address: the disk is gone"},
                                    {ESTALE, "Stale file handle: the disk is gone"},
                                    {EROFS, "Read-only file system: the file system has turned read-only"},
                                    {EIO, "Input/output error, at byte 4096 of the swap file; check the disk"}}) {
    const auto store = make_swap_store(with_faults(store_options(folder_.path(), {kPage}), {.fail_at = 0, .fail_error = error}));
    const auto channel = store->open_channel(IoPriority::streaming);
    EXPECT_THAT(io_error_of([&] { write_now(*channel, 0, data_); }), HasSubstr(text));
    EXPECT_THAT(io_error_of([&] { channel->write(0, data_.data(), 1); }),
                AllOf(HasSubstr("not begun, since another transfer has failed: [nvme] write tile 0 of block 3"), HasSubstr(text)));
  }
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
