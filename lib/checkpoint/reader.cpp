#include "checkpoint/reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "base/state_format.h"
#include "base/values.h"
#include "checkpoint/differences.h"
#include "checkpoint/safetensors.h"
#include "spillway/error.h"

namespace spillway::checkpoint {

namespace {

constexpr std::size_t kNoPiece = static_cast<std::size_t>(-1);
constexpr std::int64_t kReadAheadBytes = 8 << 20;

Manifest load_manifest(const std::string& folder) {
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0) throw_system_error("open the checkpoint", folder, errno);
  if (!S_ISDIR(status.st_mode)) {
    throw IoError(fmt::format("[checkpoint] open {}: it is a file; a checkpoint is a folder", folder));
  }
  const std::string file = fmt::format("{}/{}", folder, kManifestName);
  if (::stat(file.c_str(), &status) != 0 && errno == ENOENT) {
    throw IoError(fmt::format("[checkpoint] open {}: it has no {}; it is no checkpoint, or one whose copy was not finished", folder,
                              kManifestName));
  }
  Manifest manifest = parse_manifest(read_text(file), file);
  if (const std::string wrong = sort_and_check_coverage(manifest); !wrong.empty()) {
    throw IoError(fmt::format("[checkpoint] open {}: {}; use another checkpoint", folder, wrong));
  }
  if (const std::uint64_t hash = state_hash_of(manifest.tensors, manifest.run.applied_steps); hash != manifest.state_hash) {
    throw IoError(fmt::format("[checkpoint] open {}: the hashes of its tensors make up {}, its state hash is {}; use another checkpoint",
                              folder, hex64(hash), hex64(manifest.state_hash)));
  }
  return manifest;
}

}  // namespace

Reader::Reader(std::string folder) : folder_(std::move(folder)), manifest_(load_manifest(folder_)), held_piece_(kNoPiece) {
  for (std::size_t t = 0; t < manifest_.tensors.size(); ++t) tensors_.emplace(manifest_.tensors[t].name, t);
  check_files();
}

void Reader::check_files() {
  offsets_.resize(manifest_.pieces.size());
  std::vector<std::map<std::string, std::size_t>> pieces_of_file(manifest_.files.size());
  for (std::size_t p = 0; p < manifest_.pieces.size(); ++p) {
    pieces_of_file[manifest_.pieces[p].file].emplace(key_of(manifest_, manifest_.pieces[p]), p);
  }
  for (std::size_t f = 0; f < manifest_.files.size(); ++f) {
    const std::string path = path_of(f);
    const std::int64_t bytes = size_of_file(open_for_reading(path), path);
    if (bytes != manifest_.files[f].bytes) {
      throw IoError(fmt::format("[checkpoint] open {}: it has {} bytes, the manifest says {}; it was cut or replaced, use another "
                                "checkpoint",
                                path, bytes, manifest_.files[f].bytes));
    }
    const SafetensorsHeader header = read_safetensors_header(path);
    const auto& pieces = pieces_of_file[f];
    for (const SafetensorsEntry& entry : header.entries) {
      const auto piece = pieces.find(entry.name);
      const bool as_stated = piece != pieces.end() && entry.dtype == manifest_.dtype_of(manifest_.pieces[piece->second]) &&
                             entry.end - entry.begin == manifest_.bytes_of(manifest_.pieces[piece->second]);
      if (!as_stated) {
        throw IoError(fmt::format("[checkpoint] open {}: it holds '{}' ({}, {} bytes), the manifest {}; use another checkpoint", path,
                                  entry.name, name_of(entry.dtype), entry.end - entry.begin,
                                  piece == pieces.end() ? "knows nothing of it" : "says otherwise"));
      }
      offsets_[piece->second] = header.data_offset + entry.begin;
    }
    if (header.entries.size() != pieces.size()) {
      throw IoError(fmt::format("[checkpoint] open {}: it holds {} pieces, the manifest names {}; use another checkpoint", path,
                                header.entries.size(), pieces.size()));
    }
  }
}

void Reader::check_model(const ModelSpec& model, DType dtype) const {
  std::vector<FieldDifference> found = differences(manifest_.model, model);
  if (manifest_.dtype != dtype) {
    found.push_back({"the dtype of weights", std::string(name_of(manifest_.dtype)), std::string(name_of(dtype))});
  }
  if (found.empty()) return;
  throw IoError(fmt::format("[checkpoint] use {} (model \"{}\") for model \"{}\": {} is {} in the checkpoint and {} in this run; name "
                            "another checkpoint or change the run",
                            folder_, manifest_.model.name, model.name, found[0].field, found[0].first, found[0].second));
}

void Reader::check_optimizer(const StateFormat& state) const {
  if (manifest_.state == state) return;
  throw IoError(fmt::format("[checkpoint] use {} with another optimizer: its state is that of {}, this run's would be that of {}; set optimizer.type and "
                            "spillway.moments to what the checkpoint has, or name another checkpoint",
                            folder_, text_of(manifest_.state), text_of(state)));
}

std::size_t Reader::tensor_index(const std::string& param) const {
  const auto found = tensors_.find(param);
  if (found == tensors_.end()) {
    throw IoError(fmt::format("[checkpoint] read '{}' from {}: it holds no such parameter; name a checkpoint of this model", param, folder_));
  }
  return found->second;
}

void Reader::read(const std::string& param, StateSection section, std::int64_t begin, std::span<float> out) {
  const std::size_t tensor = tensor_index(param);
  const TensorEntry& entry = manifest_.tensors[tensor];
  const auto count = static_cast<std::int64_t>(out.size());
  if (begin < 0 || begin > entry.num_elements() || count > entry.num_elements() - begin) {
    throw IoError(fmt::format("[checkpoint] read elements {} to {} of '{}' from {}: it has {}; name a checkpoint of this model", begin,
                              begin + count, param, folder_, entry.num_elements()));
  }
  if (is_moment(section) && moment_of(manifest_.state.kind, section) < 0) {
    throw IoError(fmt::format("[checkpoint] read the {} of '{}' from {}: its state is that of {}, which has none; name a checkpoint of the same optimizer",
                              name_of(section), param, folder_, text_of(manifest_.state)));
  }
  if (!entry.frozen) {
    const bool weight = section == StateSection::weight;
    read_stored(tensor, weight ? StateSection::master : section, begin, out);
    if (weight) round_values(manifest_.dtype, out);
  } else if (is_moment(section)) {
    std::ranges::fill(out, 0.0f);
  } else {
    read_stored(tensor, StateSection::weight, begin, out);
  }
}

void Reader::read_stored(std::size_t tensor, StateSection section, std::int64_t begin, std::span<float> out) {
  const auto& pieces = manifest_.pieces;
  // The first piece that ends after `begin`; those of a section follow each other.
  const auto key = [](const Piece& piece) { return std::tuple(piece.tensor, piece.section, piece.end); };
  auto piece = std::ranges::upper_bound(pieces, std::tuple(tensor, section, begin), {}, key);
  for (; !out.empty(); ++piece) {
    const std::int64_t skipped = begin - piece->begin;
    const std::int64_t count = std::min<std::int64_t>(piece->end - begin, static_cast<std::int64_t>(out.size()));
    const DType dtype = manifest_.dtype_of(*piece);
    const auto bytes = piece_bytes(static_cast<std::size_t>(piece - pieces.begin()));
    widen(dtype, bytes.subspan(static_cast<std::size_t>(skipped * size_of(dtype))), out.first(static_cast<std::size_t>(count)));
    out = out.subspan(static_cast<std::size_t>(count));
    begin += count;
  }
}

std::span<const std::byte> Reader::piece_bytes(std::size_t index) {
  const Piece& piece = manifest_.pieces[index];
  const auto bytes = static_cast<std::size_t>(manifest_.bytes_of(piece));
  if (index == held_piece_) return std::span(held_bytes_).first(bytes);
  held_piece_ = kNoPiece;
  if (!file_ || file_index_ != piece.file) {
    file_ = open_for_reading(path_of(piece.file));
    file_index_ = piece.file;
  }
  if (held_bytes_.size() < bytes) held_bytes_.resize(bytes);
  const auto data = std::span(held_bytes_).first(bytes);
  read_at(file_, offsets_[index], data, path_of(piece.file));
  // The disk goes on while this piece is checked and used. Files are read from front to back, mostly.
  read_ahead(file_, offsets_[index] + static_cast<std::int64_t>(bytes), kReadAheadBytes);
  if (const std::uint64_t found = hash_bytes(data); found != piece.checksum) {
    throw IoError(fmt::format("[checkpoint] read {} of '{}', elements {} to {}, from {}: its checksum is {}, the manifest says {}; the "
                              "file was altered or the disk lies, use another checkpoint",
                              name_of(piece.section), manifest_.tensors[piece.tensor].name, piece.begin, piece.end, path_of(piece.file),
                              hex64(found), hex64(piece.checksum)));
  }
  held_piece_ = index;
  return data;
}

}  // namespace spillway::checkpoint
