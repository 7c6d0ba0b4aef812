// What a checkpoint says about itself: the file manifest.json, written last. It names the model, the state of the run,
// every tensor, and every piece of every tensor with the file that holds it and its checksum.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/sampler.h"
#include "optim/loss_scaler.h"
#include "runtime/state_hash.h"
#include "spillway/dtype.h"
#include "spillway/model.h"

namespace spillway::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";

// Elements of a piece, at most: what a reader has to hold in order to verify.
inline constexpr std::int64_t kMaxPieceElements = 1 << 20;

// Everything but the tensors that a run needs in order to go on.
struct RunState {
  std::int64_t step = 0;           // steps done, skipped ones included
  std::int64_t applied_steps = 0;  // updates applied: the optimizer's count
  std::int64_t skipped_steps = 0;
  LossScalerState loss_scaler;
  std::uint64_t seed = 0;
  SampleCursor cursor;
  std::int64_t global_batch = 0;     // samples of a step
  std::int64_t sequence_length = 0;
  std::string data;                  // description of the training data
  std::string config_json;           // the configuration in force

  // Information only; whatever they are, any world reads the checkpoint.
  std::int64_t world_size = 1;
  std::int64_t zero_stage = 0;
  std::string spillway_version;

  bool operator==(const RunState&) const = default;
};

// A parameter, as a whole.
struct TensorInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  bool frozen = false;

  std::int64_t num_elements() const;
  bool operator==(const TensorInfo&) const = default;
};

struct TensorEntry : TensorInfo {
  SectionHashes hashes{};
};

struct FileEntry {
  std::string name;
  std::int64_t bytes;
};

// Elements [begin, end) of one section of a tensor: one safetensors entry of one file.
struct Piece {
  std::size_t tensor;      // index into the manifest's
  StateSection section;
  std::int64_t begin;
  std::int64_t end;
  std::size_t file;        // index into the manifest's
  std::uint64_t checksum;  // XXH3 of its bytes

  std::int64_t num_elements() const { return end - begin; }
};

struct Manifest {
  ModelSpec model;
  DType dtype = DType::f32;     // of the weights
  StateFormat state;            // of the optimizer
  RunState run;
  std::uint64_t state_hash = 0;  // combine_state_hash() of all tensors' hashes
  std::vector<TensorEntry> tensors;
  std::vector<FileEntry> files;
  std::vector<Piece> pieces;

  std::span<const StateSection> sections_of(const TensorInfo& tensor) const { return spillway::sections_of(state.kind, tensor.frozen); }
  DType dtype_of(const Piece& piece) const { return spillway::dtype_of(piece.section, dtype, state.moments); }
  std::int64_t bytes_of(const Piece& piece) const { return piece.num_elements() * size_of(dtype_of(piece)); }
};

// "h.0.attn.c_attn.weight|master|0|1048576"
std::string key_of(const Manifest& manifest, const Piece& piece);

std::uint64_t state_hash_of(const std::vector<TensorEntry>& tensors, std::int64_t applied_steps);

std::string to_json(const Manifest& manifest);

// The reverse. Throws IoError naming `file` and what is wrong: no manifest, another version of the format, altered
// (the text carries its own checksum), or a value that cannot be.
Manifest parse_manifest(std::string_view text, const std::string& file);

// What is wrong with how the pieces cover the sections of the tensors (each element exactly once), as an end of a
// sentence; empty: nothing. Sorts the pieces by tensor, section and range.
std::string sort_and_check_coverage(Manifest& manifest);

}  // namespace spillway::checkpoint
