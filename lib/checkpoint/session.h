// One save, as one rank sees it: the ranks agree on a hidden folder, each writes its file into it, and rank 0 makes it
// a checkpoint once all files are on disk. Where any rank fails the save fails on all, and nothing is left of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/folders.h"
#include "checkpoint/rank_file.h"
#include "spillway/communicator.h"

namespace spillway::checkpoint {

// How a save ended; the same on all ranks.
struct SaveResult {
  std::string folder;   // of the checkpoint
  std::int64_t step = 0;
  std::int64_t bytes = 0;  // of all files
  double seconds = 0.0;    // from begin() until it was on disk
  std::uint64_t state_hash = 0;
  std::string error;    // what went wrong, in a sentence; empty: the checkpoint is there, and on disk

  bool ok() const { return error.empty(); }
};

struct WriterOptions {
  std::string root;                 // the folder checkpoints go to; on several machines on a file system they share
  ModelSpec model;
  DType dtype = DType::f32;         // of weights
  StateFormat state;                // of the optimizer
  std::vector<TensorInfo> tensors;  // of the model, on all ranks alike
  int keep = 0;                     // complete checkpoints to keep, the new one included; 0: all
};

// Over the files of all ranks.
struct Totals {
  std::int64_t file_bytes = 0;
  std::int64_t header_bytes = 0;
};

// What all ranks have to say to each other. Every rank gets the same.
struct Agreement {
  std::vector<std::string> texts;  // by rank
  std::string error;               // of the first rank that has one; empty: none has
};

// Collective. `error` is empty or what this rank fails with. Throws CommError.
Agreement agree(Communicator& communicator, const std::string& text, const std::string& error);

// Collective as a whole: every rank constructs one, adds its items, and calls commit(). Throws CommError only.
class Session {
 public:
  // Borrows everything but `run`.
  Session(Communicator& communicator, const WriterOptions& options, const RankLayout& layout, const Totals& totals,
          std::span<std::byte> buffer, const RunState& run);

  // Items 0, 1, ... in turn.
  void add(std::size_t item, std::span<const std::byte> bytes);

  // This rank cannot go on: further items need not be added.
  bool failed() const { return !error_.empty(); }

  bool buffered() const { return buffered_; }

  // After all items, or failure.
  SaveResult commit();

 private:
  void reserve();
  Manifest manifest_of_ranks(const std::vector<std::string>& contributions) const;
  std::string manifest_path() const;
  void publish(const Manifest& manifest);
  void put_in_place(std::uint64_t state_hash);
  SaveResult failure(const std::string& error);

  Communicator& communicator_;
  const WriterOptions& options_;
  const RankLayout& layout_;
  Totals totals_;
  RunState run_;
  std::string target_;
  std::optional<TemporaryFolder> folder_;  // rank 0
  std::optional<RankFile> file_;
  bool started_ = false;  // the ranks have agreed on a folder
  bool buffered_ = false;
  std::string error_;
};

}  // namespace spillway::checkpoint
