// File systems of a test's own: small, so that they can be full, and with a disk of their own that can be taken away. Needs
// root.
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

// tmpfs of 16 MiB; ext4 of 32, btrfs of 128 and xfs of 320 MiB, the least that it takes, each in a sparse file on a loop
// device, of sectors as large as given; or overlay on the file system of the working directory.
class MountedFolder {
 public:
  explicit MountedFolder(const std::string& kind, int sector_bytes = 512) : path_(folder_.path() + "/mounted") {
    std::filesystem::create_directory(path_);
    if (kind == "tmpfs") {
      mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=16m") == 0;
    } else if (kind == "overlay") {
      mount_overlay();
    } else {
      mount_image(kind, sector_bytes);
    }
  }
  ~MountedFolder() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  MountedFolder(const MountedFolder&) = delete;
  MountedFolder& operator=(const MountedFolder&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& path() const { return path_; }

  // Takes the disk away under the mounted file system, as if it had been pulled out: it ends at its first byte. False if
  // that cannot be.
  bool lose_disk() {
    std::filesystem::resize_file(image_, 0);
    return run("losetup -c " + device_);
  }

 private:
  static bool run(const std::string& command) { return std::system(command.c_str()) == 0; }

  void mount_overlay() {
    for (const char* part : {"/lower", "/upper", "/staging"}) std::filesystem::create_directory(folder_.path() + part);
    const std::string options = "lowerdir=" + folder_.path() + "/lower,upperdir=" + folder_.path() + "/upper,workdir=" + folder_.path() + "/staging";
    mounted_ = mount("overlay", path_.c_str(), "overlay", 0, options.c_str()) == 0;
  }

  void mount_image(const std::string& kind, int sector_bytes) {
    image_ = folder_.path() + "/image";
    std::ofstream(image_).close();
    std::filesystem::resize_file(image_, (kind == "ext4" ? 32u : kind == "btrfs" ? 128u : 320u) << 20);
    const std::string name = folder_.path() + "/device";
    if (!run("losetup --sector-size " + std::to_string(sector_bytes) + " --find --show '" + image_ + "' > '" + name + "'")) return;
    std::ifstream(name) >> device_;
    const std::string quiet = kind == "ext4" ? "-q -F " : "-q -f ";
    mounted_ = run("mkfs." + kind + " " + quiet + device_ + " > '" + name + "'") && mount(device_.c_str(), path_.c_str(), kind.c_str(), 0, nullptr) == 0;
    run("losetup -d " + device_);  // goes when it is no longer mounted, also if this process is killed
  }

  TestFolder folder_;
  std::string path_;
  std::string image_;
  std::string device_;
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
