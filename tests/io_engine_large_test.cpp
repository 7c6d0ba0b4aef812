// Requests of 3 GiB: more than the kernel moves at once, and more than 32 bits count. Each is moved in part, and the caller goes
// on until all is done. The memory is 64 MiB mapped again and again, but for pages of its own where it matters.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/aligned_buffer.h"
#include "support/io_harness.h"

namespace spillway {
namespace {

using namespace spillway::testing;

constexpr std::int64_t kGiB = std::int64_t{1} << 30, kLarge = 3 * kGiB;

class RepeatedMemory {
 public:
  RepeatedMemory() : fd_(memfd_create("repeated", MFD_CLOEXEC)), data_(static_cast<std::byte*>(mmap(nullptr, kLarge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (fd_ < 0 || ftruncate(fd_, kPeriod) != 0 || data_ == MAP_FAILED) throw std::runtime_error("cannot make memory");
    for (std::int64_t offset = 0; offset < kLarge; offset += kPeriod) map(offset, kPeriod, MAP_SHARED, fd_);
  }
  ~RepeatedMemory() {
    munmap(data_, kLarge);
    close(fd_);
  }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;

  // From here on this page is no other's, and full of zeros.
  std::byte* own_page(std::int64_t offset) {
    map(offset, kPage, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    return data_ + offset;
  }
  std::byte* data() const { return data_; }

 private:
  static constexpr std::int64_t kPeriod = 64 << 20;

  void map(std::int64_t offset, std::int64_t bytes, int flags, int fd) {
    void* const place = data_ + offset;
    if (mmap(place, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) != place) throw std::runtime_error("cannot map memory");
  }

  int fd_;
  std::byte* data_;
};

// Both sides of every border that a counter or a part might have.
std::vector<std::int64_t> borders(std::int64_t first_offset) {
  std::set<std::int64_t> pages = {0, kLarge - kPage};
  for (const std::int64_t border : {kGiB, 2 * kGiB, 2 * kGiB - kPage, (std::int64_t{1} << 31) - first_offset, (std::int64_t{1} << 32) - first_offset}) {
    for (const std::int64_t page : {border - kPage, border}) {
      if (page >= 0 && page < kLarge) pages.insert(page);
    }
  }
  return {pages.begin(), pages.end()};
}

// Moves it whole, as callers do; returns in how many parts.
int move_whole(IoEngine& engine, IoRequest request) {
  int parts = 0;
  while (request.bytes > 0) {
    const IoResult result = run(engine, request);
    EXPECT_EQ(result.error, 0);
    EXPECT_GT(result.bytes, 0);
    EXPECT_LE(result.bytes, IoEngine::max_transfer_bytes);
    if (result.error != 0 || result.bytes <= 0) break;
    request.offset += result.bytes;
    request.data += result.bytes;
    request.bytes -= result.bytes;
    ++parts;
  }
  return parts;
}

class IoEngineLargeTest : public ::testing::TestWithParam<EngineCase> {};

INSTANTIATE_TEST_SUITE_P(BuiltIn, IoEngineLargeTest, ::testing::ValuesIn(engines_of_one_thread()), label_of);

// The file is a hole but for the pages that are looked at.
TEST_P(IoEngineLargeTest, ReadsThreeGibibytesAcrossTheBordersOf31And32Bits) {
  constexpr std::int64_t kFirst = (std::int64_t{1} << 31) - kGiB / 2;
  const ScratchFile file;
  ASSERT_EQ(ftruncate(file.fd(), kFirst + kLarge), 0);
  RepeatedMemory memory;
  AlignedBuffer page(kPage);
  for (const std::int64_t offset : borders(kFirst)) {
    page.fill(static_cast<std::uint64_t>(offset));
    ASSERT_EQ(pwrite(file.fd(), page.data(), kPage, kFirst + offset), kPage);
    memory.own_page(offset);
  }
  EXPECT_GE(move_whole(*GetParam().make(2), {IoOp::read, file.fd(), kFirst, memory.data(), kLarge, 1}), 3);
  for (const std::int64_t offset : borders(kFirst)) {
    page.fill(static_cast<std::uint64_t>(offset));
    EXPECT_EQ(std::memcmp(page.data(), memory.data() + offset, kPage), 0) << offset;
  }
}

// To a real file, read back where it matters and at random in between.
TEST_P(IoEngineLargeTest, WritesThreeGibibytes) {
  constexpr std::int64_t kFirst = kPage;
  const ScratchFile file;
  RepeatedMemory memory;
  AlignedBuffer noise(64 << 20), page(kPage);
  noise.fill(7);
  std::memcpy(memory.data(), noise.data(), 64 << 20);
  for (const std::int64_t offset : borders(kFirst)) {
    page.fill(static_cast<std::uint64_t>(offset));
    std::memcpy(memory.own_page(offset), page.data(), kPage);
  }
  EXPECT_GE(move_whole(*GetParam().make(2), {IoOp::write, file.fd(), kFirst, memory.data(), kLarge, 1}), 3);
  std::vector<std::int64_t> looked_at = borders(kFirst);
  std::mt19937_64 random(8);
  for (int i = 0; i < 200; ++i) looked_at.push_back(static_cast<std::int64_t>(random() % (kLarge / kPage)) * kPage);
  for (const std::int64_t offset : looked_at) {
    ASSERT_EQ(pread(file.fd(), page.data(), kPage, kFirst + offset), kPage);
    EXPECT_EQ(std::memcmp(page.data(), memory.data() + offset, kPage), 0) << offset;
  }
  EXPECT_EQ(lseek(file.fd(), 0, SEEK_END), kFirst + kLarge);
}

}  // namespace
}  // namespace spillway
