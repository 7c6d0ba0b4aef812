#include "checkpoint/file_system.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/text.h"
#include "base/unnamed_file.h"
#include "spillway/error.h"

namespace spillway::checkpoint {

namespace {

std::string_view advice_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "make room, keep fewer checkpoints or use another disk";
    case EROFS: return "use a folder on a writable file system";
    case EACCES:
    case EPERM: return "allow this user to, or use another folder";
    case ENOENT: return "check the path; on several machines it must be on a file system they share";
    case ENOTDIR:
    case EISDIR: return "check the path";
    case EFBIG: return "raise the limit on the size of files";
    case EIO: return "check the disk";
    default: return "check the folder and the disk";
  }
}

}  // namespace

int Descriptor::close() {
  if (fd_ < 0) return 0;
  return ::close(std::exchange(fd_, -1)) == 0 || errno == EINTR ? 0 : errno;
}

void throw_system_error(std::string_view attempt, const std::string& path, int error) {
  throw IoError(fmt::format("[checkpoint] {} {}: {}; {}", attempt, path, std::generic_category().message(error), advice_for(error)));
}

Descriptor create_file(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) throw_system_error("create", path, errno);
  return file;
}

Descriptor create_unnamed_file(const std::string& folder) {
  const int fd = open_unnamed_file(folder);
  if (fd < 0) throw_system_error("create a file in", folder, -fd);
  return Descriptor(fd);
}

Descriptor open_for_reading(const std::string& path) {
  // Not blocking, should it be a pipe.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw_system_error("open", path, errno);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) throw_system_error("look at", path, errno);
  if (!S_ISREG(status.st_mode)) {
    throw IoError(fmt::format("[checkpoint] open {}: it is {}, not a file; check the path", path,
                              S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe"));
  }
  return file;
}

std::int64_t size_of_file(const Descriptor& file, const std::string& path) {
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) throw_system_error("look at", path, errno);
  return status.st_size;
}

void read_at(const Descriptor& file, std::int64_t offset, std::span<std::byte> out, const std::string& path) {
  while (!out.empty()) {
    const ::ssize_t count = ::pread(file.get(), out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_system_error("read", path, errno);
    if (count == 0) {
      throw IoError(fmt::format("[checkpoint] read {}: it ends at byte {}, {} bytes short; it was cut, use another checkpoint", path,
                                offset, out.size()));
    }
    out = out.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

void read_ahead(const Descriptor& file, std::int64_t offset, std::int64_t bytes) {
  ::posix_fadvise(file.get(), offset, bytes, POSIX_FADV_WILLNEED);
}

std::string read_text(const std::string& path) {
  const Descriptor file = open_for_reading(path);
  std::string text(static_cast<std::size_t>(size_of_file(file, path)), '\0');
  read_at(file, 0, std::as_writable_bytes(std::span(text)), path);
  return text;
}

void reserve_space(const Descriptor& file, std::int64_t bytes, const std::string& path) {
  int result = 0;
  do {
    result = ::fallocate(file.get(), 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return;
  throw_system_error("reserve space for", path, errno);
}

void reserve_file(const std::string& path, std::int64_t bytes) {
  reserve_space(create_file(path), bytes, path);
}

void write_durably(const std::string& path, std::string_view text) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file) throw_system_error("create", path, errno);
  const auto bytes = static_cast<::off_t>(text.size());
  while (!text.empty()) {
    const ::ssize_t count = ::write(file.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_system_error("write", path, errno);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  if (::ftruncate(file.get(), bytes) != 0) throw_system_error("set the size of", path, errno);
  if (::fsync(file.get()) != 0) throw_system_error("write to disk", path, errno);
  if (const int error = file.close()) throw_system_error("close", path, error);
}

void sync_folder(const std::string& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) throw_system_error("open", path, errno);
  // EINVAL: a file system that keeps no names to be synchronised.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) throw_system_error("write to disk", path, errno);
}

std::int64_t free_bytes_under(const std::string& folder) {
  struct statvfs status{};
  while (::statvfs(folder.c_str(), &status) != 0) {
    if (errno != EINTR) throw_system_error("look up the free space under", folder, errno);
  }
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

void require_space(const std::string& attempt, const std::string& folder, std::int64_t bytes) {
  const std::int64_t free = free_bytes_under(folder);
  if (bytes <= free) return;
  throw IoError(fmt::format("[checkpoint] {}: {}; needs {}, {} free; {}", attempt, std::generic_category().message(ENOSPC), human_bytes(bytes),
                            human_bytes(free), advice_for(ENOSPC)));
}

std::string parent_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string name_in_parent(const std::string& path) { return std::filesystem::path(path).filename().string(); }

std::string unique_suffix() {
  static std::atomic<std::int64_t> calls{0};
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  Hasher hasher;
  hasher.add(std::string_view(host));
  hasher.add(std::int64_t{::getpid()});
  hasher.add(std::int64_t{std::chrono::system_clock::now().time_since_epoch().count()});
  hasher.add(calls++);
  return hex64(hasher.value());
}

}  // namespace spillway::checkpoint
