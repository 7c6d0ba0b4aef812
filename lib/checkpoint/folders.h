// Names of folders, and folders that appear whole or not at all. What is unfinished has a hidden name, so that no
// death leaves something that looks complete:
//   step-00000100                      a checkpoint
//   .step-00000100.partial-0123456789abcdef   one being written; its writer holds a lock (flock) on it
//   .step-00000100.removed-0123456789abcdef   one being deleted
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file_system.h"

namespace spillway::checkpoint {

std::string folder_name(std::int64_t step);

// The step of a checkpoint's name; nothing if it is not one.
std::optional<std::int64_t> step_of(std::string_view name);

// Names in a folder; empty if it does not exist. Throws IoError if it cannot be read.
std::vector<std::string> names_in(const std::string& folder);

// The name that a hidden one (being written, or deleted) stands for; nothing if it is not hidden by us.
std::optional<std::string> name_behind(std::string_view hidden);

// A hidden folder that becomes visible under its name, or is removed with its owner.
class TemporaryFolder {
 public:
  // Beside `path`, whose parent exists. Throws IoError.
  explicit TemporaryFolder(const std::string& path);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return hidden_; }

  // Makes it `path`, on disk when this returns. False, and nothing has happened, if something is there (an empty
  // folder aside) and `replace` is off. Replacing swaps both atomically, and removes the old one; where the file
  // system cannot, that is an IoError. The files within are already on disk.
  bool publish(bool replace);

 private:
  std::string path_;
  std::string hidden_;
  Descriptor lock_;
  bool published_ = false;
};

// Renames to a hidden name, then deletes. Throws IoError.
void remove_folder(const std::string& path);

// Deletes what dead writers left in a folder, under hidden names whose visible ones are `ours`. Whatever cannot be
// removed stays, with a warning.
void remove_stale(const std::string& folder, const std::function<bool(std::string_view)>& ours);

}  // namespace spillway::checkpoint
