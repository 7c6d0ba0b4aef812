// The part of a checkpoint that one rank writes: one safetensors file with its items, packed without holes. Which
// pieces it has, and so its header and its size, is known before the first save.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/sequential_file.h"
#include "runtime/state_io.h"

namespace spillway::checkpoint {

// The file of one rank, but for the values.
struct RankLayout {
  DType dtype;
  StateFormat state;
  std::vector<TensorInfo> tensors;      // of the model
  std::vector<SnapshotItem> items;      // of this rank, in the order in which they come
  std::vector<Piece> pieces;            // in the order of the file; `file` and `checksum` are open
  std::vector<std::size_t> first_piece;  // of each item, and the end
  std::string header;
  std::int64_t file_bytes;

  std::int64_t largest_item_bytes() const;
};

RankLayout make_rank_layout(DType dtype, const StateFormat& state, std::vector<TensorInfo> tensors, std::vector<SnapshotItem> items);

// What a rank says of its file when it is on disk.
struct Contribution {
  std::int64_t file_bytes = 0;
  std::vector<Piece> pieces;          // `file` is open
  std::vector<SectionHashes> hashes;  // partial, by tensor
};

std::string to_text(const Contribution& contribution);
Contribution parse_contribution(const std::string& text, std::size_t num_tensors);

// Hashes, checksums and writes in one pass over the items.
class RankFile {
 public:
  // Borrows the layout and the buffer (see SequentialFile). Throws IoError, as every member does.
  RankFile(const RankLayout& layout, const std::string& path, std::span<std::byte> buffer);

  // Items 0, 1, ... in turn; `bytes` as SnapshotItem describes them.
  void add(std::size_t item, std::span<const std::byte> bytes);

  // After all items: returns when the file is on disk.
  Contribution finish();

  bool buffered() const { return file_.buffered(); }

 private:
  // Whose first value is element `first` of the item.
  void add_piece(std::size_t piece, SectionValues& values, std::int64_t first);

  const RankLayout& layout_;
  SequentialFile file_;
  Contribution contribution_;
};

}  // namespace spillway::checkpoint
