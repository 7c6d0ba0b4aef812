#include "swap_file.h"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
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

}  // namespace

SwapFile::SwapFile(std::string folder, std::int64_t bytes)
    : folder_(std::move(folder)), fd_(open_unnamed(folder_)) {
  try {
    // In this order: where the file system cannot allocate, the C library does so by small writes,
    // which O_DIRECT would refuse.
    allocate(bytes);
    bypass_page_cache();
  } catch (...) {
    close(fd_);
    throw;
  }
}

SwapFile::~SwapFile() { close(fd_); }

void SwapFile::allocate(std::int64_t bytes) {
  if (bytes == 0) return;
  const std::int64_t free = free_bytes(folder_);  // before the attempt, which may take it all
  int error = 0;
  do {
    error = posix_fallocate(fd_, 0, bytes);
  } while (error == EINTR);
  if (error == 0) return;
  const std::string needs = fmt::format("needs {}, {} free", human_bytes(bytes), human_bytes(free));
  throw IoError(fmt::format("[nvme] allocate swap file ({}): {}; {}; make room, set nvme_path to another disk or lower "
                            "spillway.nvme_memory",
                            folder_, errno_text(error), needs));
}

// After opening, by fcntl: open() with O_CREAT and O_DIRECT may leave a file behind when it fails.
void SwapFile::bypass_page_cache() {
  const int flags = fcntl(fd_, F_GETFL);
  if (flags >= 0 && fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0) return;
  const int error = errno;
  buffered_ = true;
  log_warning(fmt::format("[nvme] {} ({}) refuses O_DIRECT ({}): the page cache is in between, which costs memory "
                          "outside the budget and processor time",
                          folder_, file_system_name(fd_), errno_text(error)));
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
