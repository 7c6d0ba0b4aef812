#include "checkpoint/inspect.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/hash.h"
#include "base/state_format.h"
#include "base/text.h"
#include "spillway/error.h"

namespace spillway::checkpoint {

namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) { return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, " x ")); }

// Of a trained tensor.
std::string kept_text(const StateFormat& state) {
  if (state.num_moments() == 0) return "master (fp32)";
  if (state.moments == MomentFormat::f32) return "master, moments (fp32)";
  if (state.moments == MomentFormat::bf16) return "master (fp32), moments (bf16)";
  return "master, moments (fp32; 8bit in training)";
}

std::string tensor_table(const Manifest& manifest) {
  std::size_t name_width = 6, shape_width = 5;
  for (const TensorEntry& tensor : manifest.tensors) {
    name_width = std::max(name_width, tensor.name.size());
    shape_width = std::max(shape_width, shape_text(tensor.shape).size());
  }
  std::string text = fmt::format("{:{}}  {:{}}  {:>12}  kept\n", "tensor", name_width, "shape", shape_width, "elements");
  for (const TensorEntry& tensor : manifest.tensors) {
    text += fmt::format("{:{}}  {:{}}  {:>12}  {}\n", tensor.name, name_width, shape_text(tensor.shape), shape_width, tensor.num_elements(),
                        tensor.frozen ? fmt::format("weight ({}), frozen", name_of(manifest.dtype)) : kept_text(manifest.state));
  }
  return text;
}

}  // namespace

std::string describe(const Reader& reader) {
  const Manifest& manifest = reader.manifest();
  const RunState& run = manifest.run;
  std::int64_t elements = 0, frozen = 0, bytes = 0;
  for (const TensorEntry& tensor : manifest.tensors) {
    elements += tensor.num_elements();
    if (tensor.frozen) frozen += tensor.num_elements();
  }
  for (const FileEntry& file : manifest.files) bytes += file.bytes;
  const ModelSpec& model = manifest.model;
  std::string text;
  const auto line = [&](std::string_view label, const std::string& value) { text += fmt::format("{:<12}{}\n", label, value); };
  line("checkpoint", reader.folder());
  line("model", fmt::format("{}: {} blocks, {} channels, {} heads, vocabulary {}, context {}", model.name, model.layers, model.channels,
                            model.heads, model.vocabulary, model.context));
  line("parameters", fmt::format("{} in {} tensors{}, weights in {}", human_count(elements), manifest.tensors.size(),
                                 frozen > 0 ? fmt::format(" ({} frozen)", human_count(frozen)) : "", name_of(manifest.dtype)));
  line("optimizer", text_of(manifest.state));
  line("step", fmt::format("{} ({} applied, {} skipped)", run.step, run.applied_steps, run.skipped_steps));
  line("loss scale", fmt::format("{:g}", run.loss_scaler.scale));
  line("data", fmt::format("{}; {} samples of {} tokens a step, seed {}; next: sample {} of epoch {}", run.data, run.global_batch,
                           run.sequence_length, run.seed, run.cursor.position, run.cursor.epoch));
  line("written by", fmt::format("spillway {}, {} rank{}, ZeRO stage {}", run.spillway_version, run.world_size,
                                 run.world_size == 1 ? "" : "s", run.zero_stage));
  line("size", fmt::format("{} in {} file{}, {} pieces", human_bytes(bytes), manifest.files.size(), manifest.files.size() == 1 ? "" : "s",
                           manifest.pieces.size()));
  line("state hash", hex64(manifest.state_hash));
  return text + "\n" + tensor_table(manifest);
}

Verification verify(Reader& reader) {
  const Manifest& manifest = reader.manifest();
  Verification result;
  std::vector<SectionHashes> hashes(manifest.tensors.size());
  std::vector<bool> damaged(manifest.tensors.size());
  for (std::size_t p = 0; p < manifest.pieces.size(); ++p) {
    const Piece& piece = manifest.pieces[p];
    try {
      const auto bytes = reader.piece_bytes(p);
      result.bytes += static_cast<std::int64_t>(bytes.size());
      hashes[piece.tensor][static_cast<std::size_t>(piece.section)] +=
          section_hash(manifest.tensors[piece.tensor].name, piece.section, manifest.dtype_of(piece), piece.begin, bytes);
    } catch (const IoError& error) {
      result.problems.emplace_back(error.what());
      damaged[piece.tensor] = true;
    }
  }
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    if (damaged[t] || hashes[t] == manifest.tensors[t].hashes) continue;
    result.problems.push_back(fmt::format("[checkpoint] verify {}: the hash of '{}' is not the one it was saved with, though its pieces are; "
                                          "use another checkpoint",
                                          reader.folder(), manifest.tensors[t].name));
  }
  return result;
}

}  // namespace spillway::checkpoint
