// Every I/O engine on disks that are full, and on one that has lost a part of itself. Needs root, to mount in a private
// namespace and to make a loop device; exits 77 without.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "support/aligned_buffer.h"
#include "support/io_harness.h"
#include "support/mounted_folder.h"

namespace spillway {
namespace {

using namespace spillway::testing;

constexpr std::int64_t kMiB = 1 << 20;

std::string output_of(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  std::array<char, 256> text{};
  const std::size_t count = fread(text.data(), 1, text.size() - 1, pipe);
  pclose(pipe);
  return std::string(text.data(), count).substr(0, std::string(text.data(), count).find('\n'));
}

// A block device over a file, which can be cut short under it.
class LoopDevice {
 public:
  explicit LoopDevice(std::int64_t bytes) : image_(folder_.path() + "/image") {
    std::ofstream(image_).close();
    std::filesystem::resize_file(image_, static_cast<std::uintmax_t>(bytes));
    device_ = output_of("losetup --find --show '" + image_ + "'");
    fd_ = open(device_.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    EXPECT_GE(fd_, 0) << device_ << ": " << std::strerror(errno);
    // Goes when it is closed, also if this process is killed.
    if (std::system(("losetup --detach '" + device_ + "'").c_str()) != 0) std::fprintf(stderr, "cannot detach %s\n", device_.c_str());
  }
  ~LoopDevice() { close(fd_); }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;

  int fd() const { return fd_; }
  void cut(std::int64_t bytes) const { std::filesystem::resize_file(image_, static_cast<std::uintmax_t>(bytes)); }

 private:
  TestFolder folder_;
  std::string image_, device_;
  int fd_ = -1;
};

class IoEngineDiskTest : public ::testing::TestWithParam<EngineCase> {};

INSTANTIATE_TEST_SUITE_P(BuiltIn, IoEngineDiskTest, ::testing::ValuesIn(engines_of_one_thread()), label_of);

// Writes until there is no more room; what was written before is there, and there is room again when some is given back.
void expect_full_disk(const EngineCase& engine_case, const std::string& kind) {
  const MountedFolder folder(kind);
  ASSERT_TRUE(folder.mounted()) << std::strerror(errno);
  const int fd = open(folder.path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT), 0);
  const auto engine = engine_case.make(4);
  AlignedBuffer data(kMiB), back(kMiB);
  std::int64_t written = 0;
  IoResult result{};
  do {
    data.fill(static_cast<std::uint64_t>(written / kMiB));
    result = run(*engine, {IoOp::write, fd, written, data.data(), kMiB, 1});
    written += result.bytes;
  } while (result.bytes == kMiB && written < 64 * kMiB);
  // The write that no longer fits may be cut short first.
  if (result.error == 0) result = run(*engine, {IoOp::write, fd, written / kPage * kPage, data.data(), kMiB, 1});
  EXPECT_EQ(result.error, ENOSPC);
  EXPECT_LT(written, 64 * kMiB);
  for (std::int64_t block = 0; block < written / kMiB; ++block) {
    data.fill(static_cast<std::uint64_t>(block));
    ASSERT_EQ(run(*engine, {IoOp::read, fd, block * kMiB, back.data(), kMiB, 2}).bytes, kMiB);
    ASSERT_TRUE(data == back) << "MiB " << block;
  }
  ASSERT_EQ(ftruncate(fd, 0), 0);
  EXPECT_EQ(run(*engine, {IoOp::write, fd, 0, data.data(), kMiB, 3}).bytes, kMiB);
  close(fd);
}

TEST_P(IoEngineDiskTest, ReportsAFullTmpfsAndGoesOn) { expect_full_disk(GetParam(), "tmpfs"); }
TEST_P(IoEngineDiskTest, ReportsAFullExt4AndGoesOn) { expect_full_disk(GetParam(), "ext4"); }

TEST_P(IoEngineDiskTest, ReportsWhatTheDeviceCanNoLongerReadAndGoesOn) {
  const LoopDevice device(8 * kMiB);
  const auto engine = GetParam().make(8);
  AlignedBuffer written(8 * kMiB), back(8 * kMiB);
  written.fill(9);
  ASSERT_EQ(run(*engine, {IoOp::write, device.fd(), 0, written.data(), written.size(), 1}).bytes, written.size());
  device.cut(4 * kMiB);
  for (std::int64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(engine->queue({IoOp::read, device.fd(), i * kMiB, back.data() + i * kMiB, kMiB, static_cast<std::uint64_t>(i)}));
  }
  engine->submit();
  for (const IoResult& result : reap_all(*engine, 8)) {
    const bool is_there = result.tag < 4;
    EXPECT_EQ(result.bytes, is_there ? kMiB : 0) << result.tag;
    EXPECT_EQ(result.error, is_there ? 0 : EIO) << result.tag;
  }
  EXPECT_EQ(std::memcmp(written.data(), back.data(), 4 * kMiB), 0);
  device.cut(8 * kMiB);
  EXPECT_EQ(run(*engine, {IoOp::read, device.fd(), 7 * kMiB, back.data(), kMiB, 1}).bytes, kMiB);
  EXPECT_TRUE(std::all_of(back.data(), back.data() + kMiB, [](std::byte b) { return b == std::byte{0}; }));
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!spillway::testing::mount_in_private()) return 77;
  return RUN_ALL_TESTS();
}
