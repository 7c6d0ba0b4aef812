// File systems of a test's own: small, so that they can be full. Needs root.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <sched.h>
#include <sys/mount.h>

#include "support/test_folder.h"

namespace spillway::testing {

// tmpfs of 16 MiB, or ext4 of 32 MiB.
class MountedFolder {
 public:
  explicit MountedFolder(const std::string& kind) : path_(folder_.path() + "/mounted") {
    std::filesystem::create_directory(path_);
    if (kind == "tmpfs") {
      mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=16m") == 0;
    } else {
      const std::string image = folder_.path() + "/image";
      std::ofstream(image).close();
      std::filesystem::resize_file(image, 32 << 20);
      const std::string make = "mkfs.ext4 -q -F '" + image + "' && mount -o loop '" + image + "' '" + path_ + "'";
      mounted_ = std::system(make.c_str()) == 0;
    }
  }
  ~MountedFolder() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return path_; }

 private:
  TestFolder folder_;
  std::string path_;
  bool mounted_ = false;
};

// To be called before any thread exists: from here on mounts are seen by this process only, and go with it. Says why
// not if that cannot be.
inline bool mount_in_private() {
  if (unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0) return true;
  std::fprintf(stderr, "skipped: a private mount namespace needs root (%s)\n", std::strerror(errno));
  return false;
}

}  // namespace spillway::testing
