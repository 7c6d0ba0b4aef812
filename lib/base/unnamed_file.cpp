#include "base/unnamed_file.h"

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spillway {

namespace {

int open_then_unlink(const std::string& folder) {
  std::string path = folder + "/.spillway-XXXXXX";
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) return -errno;
  if (unlink(path.c_str()) == 0) return fd;
  const int error = errno;
  close(fd);
  return -error;
}

}  // namespace

int open_unnamed_file(const std::string& folder) {
  struct stat status{};
  if (stat(folder.c_str(), &status) != 0) return -errno;
  if (!S_ISDIR(status.st_mode)) return -ENOTDIR;
  const int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  // The folder is there, so these three only mean that the kernel or the file system has no O_TMPFILE.
  if (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT) return open_then_unlink(folder);
  return -errno;
}

}  // namespace spillway
