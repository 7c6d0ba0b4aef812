// The weights of a checkpoint as plain safetensors files that other programs read: whole tensors under their names, one
// file or several with an index. A tied head has no tensor of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/reader.h"

namespace spillway::checkpoint {

struct ExportOptions {
  DType dtype = DType::bf16;        // rounded (to nearest, ties to even) from the fp32 master, or from a frozen weight
  std::int64_t max_file_bytes = 0;  // of the tensors in a file, unless one alone is larger; 0: everything in one file
  bool allow_non_finite = false;    // infinities and NaN are exported as they are
};

struct ExportResult {
  std::vector<std::string> files;  // paths, the index last where there is one
  std::int64_t bytes = 0;          // of all tensors
};

// Streams into a folder that appears when it is complete: `target` must not exist, or be an empty folder. Throws IoError
// before anything is written if the checkpoint lacks a tensor of its model, has an empty one, or space is short; and,
// leaving nothing behind, if a value is not finite or would not be in the type asked for.
ExportResult export_weights(Reader& reader, const std::string& target, const ExportOptions& options);

}  // namespace spillway::checkpoint
