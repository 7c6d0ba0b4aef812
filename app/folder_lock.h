// One run at a time writes to a folder. After a launcher has died its ranks may still be saving when the next run
// starts: without the lock they could delete the checkpoint that run reads, or mix their metrics with its.
#pragma once

#include <string>

#include "checkpoint/file_system.h"

namespace spillway::app {

class FolderLock {
 public:
  // None.
  FolderLock() = default;

  // Waits a few seconds for another run to end, then throws IoError. Held until destroyed, or the process ends. Where the
  // file system has no locks it warns, and holds none.
  explicit FolderLock(const std::string& folder);

 private:
  checkpoint::Descriptor folder_;
};

}  // namespace spillway::app
