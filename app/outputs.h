// Where a run's files go, settled before anything is computed for them.
#pragma once

#include <string>
#include <vector>

#include "app/folder_lock.h"
#include "app/options.h"

namespace spillway::app {

// Throws IoError that names --`option` if the file could not be written. Nothing is asked for if `path` is empty.
void check_writable(const char* option, const std::string& path);

class Outputs {
 public:
  // Names the files that the command line left to --out, makes that folder and takes it for this run alone. Throws
  // IoError if a file could not be written where it is asked for, so that no run finds this out at its end.
  explicit Outputs(TrainOptions& options);

  // Removes the folders it has made, unless keep() was called: a refused run leaves nothing behind.
  ~Outputs();
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  void keep() { made_.clear(); }

 private:
  void name_files(TrainOptions& options);
  void make_folder(const std::string& folder);
  void remove_made();

  FolderLock lock_;
  std::vector<std::string> made_;  // innermost first
};

}  // namespace spillway::app
