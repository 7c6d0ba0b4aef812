// The checkpoints under a run's output folder: which one to go on from, which ones to delete.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace spillway::checkpoint {

struct Found {
  std::optional<std::string> folder;
  std::vector<std::string> notes;  // why others were passed over, one sentence each
};

// The complete checkpoint of the highest step under `root`: its manifest opens, all files are there and of full size.
// Nothing is found where `root` does not exist. Throws IoError if it cannot be listed.
Found find_newest(const std::string& root);

// What keeps a folder from being a complete checkpoint, in a sentence; empty: nothing.
std::string flaw_of(const std::string& path);

// Of a complete checkpoint. Throws IoError.
std::uint64_t state_hash_at(const std::string& path);

// Deletes complete checkpoints under `root` but for the `keep` of the highest steps, of which `written`, a path of
// one, always is one. Nothing else is touched. What cannot be deleted stays, with a warning. keep 0: all are kept.
void prune(const std::string& root, int keep, const std::string& written);

}  // namespace spillway::checkpoint
