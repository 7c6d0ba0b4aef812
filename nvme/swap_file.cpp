#include "swap_file.h"

#include <cerrno>
#include <memory>
#include <new>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "base/unnamed_file.h"
#include "errno_text.h"
#include "spillway/error.h"
#include "spillway/swap_store.h"

namespace spillway {

namespace {

[[noreturn]] void throw_folder_error(const std::string& folder, int error) {
  const bool forbidden = error == EACCES || error == EPERM;
  const char* advice = error == ENOENT    ? "make the folder or set nvme_path to another"
                       : error == ENOTDIR ? "set nvme_path to a folder"
                       : forbidden        ? "make it writable for this user or set nvme_path to another"
                       : error == EROFS   ? "set nvme_path to a folder on a writable file system"
                                          : "set nvme_path to another folder";
  throw IoError(fmt::format("[nvme] make swap file ({}): {}; {}", folder, errno_text(error), advice));
}

int open_unnamed(const std::string& folder) {
  const int fd = open_unnamed_file(folder);
  if (fd < 0) throw_folder_error(folder, -fd);
  return fd;
}

std::int64_t unprivileged_bytes(const struct statvfs& status) {
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

std::string file_system_name(int fd) {
  struct statfs status{};
  if (fstatfs(fd, &status) != 0) return "unknown";
  switch (static_cast<unsigned long>(status.f_type)) {
    case EXT4_SUPER_MAGIC: return "ext4";
    case XFS_SUPER_MAGIC: return "xfs";
    case BTRFS_SUPER_MAGIC: return "btrfs";
    case TMPFS_MAGIC: return "tmpfs";
    case NFS_SUPER_MAGIC: return "nfs";
    case OVERLAYFS_SUPER_MAGIC: return "overlay";
    case FUSE_SUPER_MAGIC: return "fuse";
    case V9FS_MAGIC: return "9p";
    default: return fmt::format("type 0x{:x}", static_cast<unsigned long>(status.f_type));
  }
}

std::uint64_t device_of(int fd) {
  struct stat status{};
  return fstat(fd, &status) == 0 ? status.st_dev : 0;
}

// btrfs writes elsewhere what is overwritten, unless told not to: then a preallocated file may still run out of space, and
// checksums of its own send direct I/O through the page cache. To be told before the file has any bytes. A btrfs that
// refuses (mounted read-only by then, no such flag) keeps working, at that price.
void overwrite_in_place(int fd) {
  int flags = 0;
  if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) return;
  flags |= FS_NOCOW_FL;
  if (ioctl(fd, FS_IOC_SETFLAGS, &flags) != 0) {
    log_warning(fmt::format("[nvme] btrfs refuses to overwrite in place ({}): it copies on write, which costs time and room that "
                            "cannot be set aside",
                            errno_text(errno)));
  }
}

// What stands against direct I/O here, as far as the file system says (statx, since Linux 6.1): empty if nothing does.
std::string direct_io_refusal(int fd) {
  struct statx status{};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0 || (status.stx_mask & STATX_DIOALIGN) == 0) return "";
  const std::uint32_t offset = status.stx_dio_offset_align, memory = status.stx_dio_mem_align;
  if (offset == 0 || memory == 0) return "not supported for this file";
  if (SwapStore::alignment % offset == 0 && SwapStore::alignment % memory == 0) return "";
  return fmt::format("it wants places aligned to {} and memory to {}, not {}", offset, memory, SwapStore::alignment);
}

}  // namespace

SwapFile::SwapFile(std::string folder) : folder_(std::move(folder)), fd_(open_unnamed(folder_)) {
  file_system_ = file_system_name(fd_);
  device_ = device_of(fd_);
  if (file_system_ == "btrfs") overwrite_in_place(fd_);
}

SwapFile::~SwapFile() {
  if (fd_ >= 0) close(fd_);
}

SwapFile::SwapFile(SwapFile&& other) noexcept
    : folder_(std::move(other.folder_)),
      fd_(std::exchange(other.fd_, -1)),
      file_system_(std::move(other.file_system_)),
      device_(other.device_),
      bytes_(other.bytes_),
      buffered_(other.buffered_) {}

// In this order: where the file system cannot allocate, the C library does so by small writes, which O_DIRECT
// would refuse.
void SwapFile::allocate(std::int64_t bytes) {
  bytes_ = bytes;
  const std::int64_t free = free_bytes_now();  // before the attempt, which may take it all
  int error = 0;
  do {
    error = bytes == 0 ? 0 : posix_fallocate(fd_, 0, bytes);
  } while (error == EINTR);
  if (error != 0) {
    throw IoError(fmt::format("[nvme] allocate swap file ({}): {}; needs {}, {} free; make room, set nvme_path to another disk or "
                              "lower spillway.nvme_memory",
                              folder_, errno_text(error), human_bytes(bytes), human_bytes(free)));
  }
  bypass_page_cache();
}

// After opening, by fcntl: open() with O_CREAT and O_DIRECT may leave a file behind when it fails.
void SwapFile::bypass_page_cache() {
  std::string refusal = direct_io_refusal(fd_);
  if (refusal.empty()) {
    const int flags = fcntl(fd_, F_GETFL);
    if (flags >= 0 && fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0) return;
    refusal = errno_text(errno);
  }
  buffered_ = true;
  log_warning(fmt::format("[nvme] {} ({}) refuses O_DIRECT ({}): the page cache is in between, which costs memory "
                          "outside the budget and processor time",
                          folder_, file_system_, refusal));
}

void SwapFile::write(std::span<const std::byte> pages, std::int64_t offset) const {
  while (!pages.empty()) {
    const ssize_t moved = pwrite(fd_, pages.data(), pages.size(), offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < SwapStore::alignment) {
      throw IoError(fmt::format("[nvme] write {} at byte {} of the swap file ({}): {}; check the disk (smartctl, dmesg) or set "
                                "nvme_path to another",
                                human_bytes(static_cast<std::int64_t>(pages.size())), offset, folder_,
                                moved < 0 ? errno_text(errno) : "short transfer"));
    }
    const std::int64_t whole = moved / SwapStore::alignment * SwapStore::alignment;
    pages = pages.subspan(static_cast<std::size_t>(whole));
    offset += whole;
  }
}

int SwapFile::read(std::span<std::byte> pages, std::int64_t offset) const {
  while (!pages.empty()) {
    const ssize_t moved = pread(fd_, pages.data(), pages.size(), offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved < SwapStore::alignment) return ENODATA;
    const std::int64_t whole = moved / SwapStore::alignment * SwapStore::alignment;
    pages = pages.subspan(static_cast<std::size_t>(whole));
    offset += whole;
  }
  return 0;
}

std::int64_t SwapFile::bytes_now() const {
  struct stat status{};
  return fstat(fd_, &status) == 0 ? status.st_size : 0;
}

std::int64_t SwapFile::free_bytes_now() const {
  struct statvfs status{};
  return fstatvfs(fd_, &status) == 0 ? unprivileged_bytes(status) : 0;
}

std::int64_t free_bytes(const std::string& folder) {
  struct statvfs status{};
  int result = 0;
  do {
    result = statvfs(folder.c_str(), &status);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    throw IoError(fmt::format("[nvme] look up free space ({}): {}; make the folder or set nvme_path to another", folder,
                              errno_text(errno)));
  }
  return unprivileged_bytes(status);
}

}  // namespace spillway
