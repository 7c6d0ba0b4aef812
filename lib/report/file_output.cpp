#include "report/file_output.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "spillway/error.h"

namespace spillway {

namespace {

[[noreturn]] void fail(std::string_view attempt, const std::string& path, int error) {
  throw IoError(fmt::format("[report] {} '{}': {}; check that its folder exists, is writable and has space",
                            attempt, path, std::generic_category().message(error)));
}

int open_for_writing(const std::string& file, const std::string& path_for_errors, int truncate = O_TRUNC) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | truncate | O_CLOEXEC, 0666);
  if (fd < 0) fail("create", path_for_errors, errno);
  return fd;
}

// Writes all of `text`; on failure returns the errno, else 0.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ::ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

// Where a write to `path` ends up: a rename onto a symbolic link would replace the link.
std::string resolve_links(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
  return resolved ? resolved.get() : path;
}

bool exists_and_is_special(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

}  // namespace

WholeFile::WholeFile(const std::string& path)
    : path_(path),
      target_(resolve_links(path)),
      written_(exists_and_is_special(target_) ? target_ : target_ + ".partial"),
      fd_(open_for_writing(written_, path)) {}

WholeFile::~WholeFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (written_ != target_) ::unlink(written_.c_str());
}

void WholeFile::append(std::string_view text) {
  if (const int error = write_all(fd_, text)) fail("write", path_, error);
}

void WholeFile::commit() {
  // Some file systems report a failed write only here.
  const int closed = ::close(fd_);
  fd_ = -1;
  int error = closed == 0 ? 0 : errno;
  if (error == 0 && written_ != target_ && std::rename(written_.c_str(), target_.c_str()) != 0) error = errno;
  if (error == 0) return;
  if (written_ != target_) ::unlink(written_.c_str());
  fail("finish", path_, error);
}

LineFile::LineFile(const std::string& path, Existing existing)
    : path_(path), fd_(open_for_writing(path, path, existing == Existing::kept ? 0 : O_TRUNC)) {
  if (existing == Existing::kept) ::lseek(fd_, 0, SEEK_END);
}

LineFile::~LineFile() { ::close(fd_); }

void LineFile::append(std::string line) {
  line += '\n';
  const ::off_t start = ::lseek(fd_, 0, SEEK_CUR);
  const int error = write_all(fd_, line);
  if (error == 0) return;
  // A pipe has no start to go back to; there the reader sees the half line, and the error still says so.
  if (start >= 0 && ::ftruncate(fd_, start) == 0) ::lseek(fd_, start, SEEK_SET);
  fail("write", path_, error);
}

void write_whole_file(const std::string& path, std::string_view text) {
  WholeFile file(path);
  file.append(text);
  file.commit();
}

}  // namespace spillway
