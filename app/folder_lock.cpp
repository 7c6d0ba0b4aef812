#include "app/folder_lock.h"

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "base/log.h"
#include "spillway/error.h"

namespace spillway::app {

namespace {

// Ranks whose launcher is gone end within a second or two; a run that is meant to go on does not.
constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::milliseconds kPause{20};

}  // namespace

// The folder itself is locked, so that no file is left behind.
FolderLock::FolderLock(const std::string& folder) : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  bool said = false;
  while (::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      log_warning(fmt::format("[out] '{}' cannot be locked ({}): see to it that no other run writes there", folder,
                              std::generic_category().message(errno)));
      return;
    }
    if (std::chrono::steady_clock::now() > give_up) {
      throw IoError(fmt::format("[out] write to '{0}': another run is writing there, and has not ended for {1} s; end it (fuser -v '{0}' names it), "
                                "or choose another --out",
                                folder, kPatience.count()));
    }
    if (!said) log_info(fmt::format("[out] '{}' is still held by another run; waiting up to {} s for it to end", folder, kPatience.count()));
    said = true;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace spillway::app
