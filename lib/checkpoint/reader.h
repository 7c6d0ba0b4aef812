// Reads a checkpoint: whole tensors or any range of them, whoever wrote which part. Everything that is handed out has
// been checked against its checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "runtime/state_io.h"

namespace spillway::checkpoint {

// Holds one piece at most (kMaxPieceElements) and one open file.
class Reader : public StateSource {
 public:
  // Reads the manifest and the headers of all files, but no data. Throws IoError, each its own, if the folder is no
  // checkpoint, the manifest is damaged or of another version, a file is missing, of another size or not what the
  // manifest says, or the pieces do not make up the tensors.
  explicit Reader(std::string folder);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  // Throws IoError naming the field in which the model of the checkpoint differs (its name aside), or its dtype.
  void check_model(const ModelSpec& model, DType dtype) const;

  // Throws IoError naming both if the state kept in the checkpoint is another optimizer's, or in another format.
  void check_optimizer(const StateFormat& state) const;

  void read(const std::string& param, StateSection section, std::int64_t begin, std::span<float> out) override;

  // The bytes of a piece, verified; valid until the next call of any member. The last piece is kept.
  std::span<const std::byte> piece_bytes(std::size_t piece);

 private:
  void check_files();
  std::size_t tensor_index(const std::string& param) const;
  // Reads what is stored: master, a moment or weight.
  void read_stored(std::size_t tensor, StateSection section, std::int64_t begin, std::span<float> out);
  std::string path_of(std::size_t file) const { return folder_ + "/" + manifest_.files[file].name; }

  std::string folder_;
  Manifest manifest_;
  std::map<std::string, std::size_t, std::less<>> tensors_;
  std::vector<std::int64_t> offsets_;  // of each piece in its file
  Descriptor file_;
  std::size_t file_index_ = 0;
  std::vector<std::byte> held_bytes_;
  std::size_t held_piece_;
};

}  // namespace spillway::checkpoint
