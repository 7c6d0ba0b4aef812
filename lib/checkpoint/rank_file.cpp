#include "checkpoint/rank_file.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <sstream>

#include "base/hash.h"
#include "checkpoint/safetensors.h"

namespace spillway::checkpoint {

namespace {

// Values that are hashed, checksummed and copied while they are in the cache.
constexpr std::int64_t kChunkElements = 64 * 1024;

}  // namespace

std::int64_t RankLayout::largest_item_bytes() const {
  std::int64_t largest = 0;
  for (const SnapshotItem& item : items) largest = std::max(largest, item.bytes());
  return largest;
}

RankLayout make_rank_layout(DType dtype, const StateFormat& state, std::vector<TensorInfo> tensors, std::vector<SnapshotItem> items) {
  std::map<std::string_view, std::size_t> index;
  for (std::size_t t = 0; t < tensors.size(); ++t) index.emplace(tensors[t].name, t);
  RankLayout layout{dtype, state, {}, {}, {}, {}, {}, 0};
  Manifest names;  // for key_of()
  for (const TensorInfo& tensor : tensors) names.tensors.push_back({tensor, {}});

  std::vector<SafetensorsEntry> entries;
  std::int64_t data_bytes = 0;
  for (const SnapshotItem& item : items) {
    assert(item.frozen || item.layout.format == state);
    layout.first_piece.push_back(layout.pieces.size());
    for (const StateSection section : sections_of(state.kind, item.frozen)) {
      const DType stored = dtype_of(section, dtype, state.moments);
      for (const StateRange& range : item.ranges) {
        assert(index.contains(range.param));
        const std::size_t tensor = index.at(range.param);
        assert(tensors[tensor].frozen == item.frozen);
        for (std::int64_t begin = range.begin; begin < range.end; begin += kMaxPieceElements) {
          const std::int64_t end = std::min(range.end, begin + kMaxPieceElements);
          const Piece piece{tensor, section, begin, end, 0, 0};
          const std::int64_t bytes = piece.num_elements() * size_of(stored);
          entries.push_back({key_of(names, piece), stored, {piece.num_elements()}, data_bytes, data_bytes + bytes});
          layout.pieces.push_back(piece);
          data_bytes += bytes;
        }
      }
    }
  }
  layout.first_piece.push_back(layout.pieces.size());
  layout.header = safetensors_header(entries, {});
  layout.file_bytes = static_cast<std::int64_t>(layout.header.size()) + data_bytes;
  layout.tensors = std::move(tensors);
  layout.items = std::move(items);
  return layout;
}

std::string to_text(const Contribution& contribution) {
  std::ostringstream text;
  text << contribution.file_bytes << ' ' << contribution.pieces.size() << '\n';
  for (const Piece& piece : contribution.pieces) {
    text << piece.tensor << ' ' << static_cast<int>(piece.section) << ' ' << piece.begin << ' ' << piece.end << ' ' << piece.checksum << '\n';
  }
  for (std::size_t t = 0; t < contribution.hashes.size(); ++t) {
    if (contribution.hashes[t] == SectionHashes{}) continue;
    text << t;
    for (const std::uint64_t hash : contribution.hashes[t]) text << ' ' << hash;
    text << '\n';
  }
  return text.str();
}

Contribution parse_contribution(const std::string& text, std::size_t num_tensors) {
  std::istringstream in(text);
  Contribution contribution;
  contribution.hashes.resize(num_tensors);
  std::size_t count = 0;
  in >> contribution.file_bytes >> count;
  for (std::size_t p = 0; p < count && in; ++p) {
    Piece piece{};
    int section = 0;
    in >> piece.tensor >> section >> piece.begin >> piece.end >> piece.checksum;
    piece.section = static_cast<StateSection>(section);
    contribution.pieces.push_back(piece);
  }
  for (std::size_t tensor = 0; in >> tensor;) {
    assert(tensor < num_tensors);
    for (std::uint64_t& hash : contribution.hashes[tensor]) in >> hash;
  }
  return contribution;
}

RankFile::RankFile(const RankLayout& layout, const std::string& path, std::span<std::byte> buffer)
    : layout_(layout), file_(path, layout.file_bytes, buffer) {
  contribution_.file_bytes = layout.file_bytes;
  contribution_.pieces = layout.pieces;
  contribution_.hashes.resize(layout.tensors.size());
  file_.append(std::as_bytes(std::span(layout.header)));
}

void RankFile::add(std::size_t item, std::span<const std::byte> bytes) {
  std::size_t piece = layout_.first_piece[item];
  for (const StateSection section : sections_of(layout_.state.kind, layout_.items[item].frozen)) {
    SectionValues values(layout_.items[item], section, layout_.dtype, bytes);
    std::int64_t first = 0;
    for (; piece < layout_.first_piece[item + 1] && layout_.pieces[piece].section == section; ++piece) {
      add_piece(piece, values, first);
      first += layout_.pieces[piece].num_elements();
    }
  }
}

void RankFile::add_piece(std::size_t index, SectionValues& values, std::int64_t first) {
  Piece& piece = contribution_.pieces[index];
  const std::string& name = layout_.tensors[piece.tensor].name;
  std::uint64_t& hash = contribution_.hashes[piece.tensor][static_cast<std::size_t>(piece.section)];
  Hasher checksum;
  for (std::int64_t begin = piece.begin; begin < piece.end;) {
    const auto chunk = values.from(first + begin - piece.begin, std::min(kChunkElements, piece.end - begin));
    checksum.add(chunk);
    hash += section_hash(name, piece.section, values.dtype(), begin, chunk);
    file_.append(chunk);
    begin += static_cast<std::int64_t>(chunk.size()) / size_of(values.dtype());
  }
  piece.checksum = checksum.value();
}

Contribution RankFile::finish() {
  file_.finish();
  return std::move(contribution_);
}

}  // namespace spillway::checkpoint
