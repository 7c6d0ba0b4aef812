#include "checkpoint/manifest.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "spillway/error.h"

namespace spillway::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "spillway-checkpoint";
constexpr std::int64_t kVersion = 2;  // 1: of Adam with fp32 moments; may be silent about it
constexpr int kDeepest = 8;  // nesting of a manifest; serialising is recursive

// What the file says of data and configuration need not be UTF-8.
std::string dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::uint64_t checksum_of(const Json& json) {
  const std::string text = dump(json);
  return hash_bytes(std::as_bytes(std::span(text)));
}

Json model_json(const ModelSpec& model) {
  return {{"name", model.name},
          {"layers", model.layers},
          {"channels", model.channels},
          {"heads", model.heads},
          {"vocabulary", model.vocabulary},
          {"context", model.context},
          {"mlp_channels", model.mlp_channels},
          {"layernorm_epsilon", static_cast<double>(model.layernorm_epsilon)}};
}

Json run_json(const RunState& run) {
  return {{"step", run.step},
          {"applied_steps", run.applied_steps},
          {"skipped_steps", run.skipped_steps},
          {"loss_scaler",
           {{"scale", run.loss_scaler.scale},
            {"updates", run.loss_scaler.updates},
            {"last_overflow", run.loss_scaler.last_overflow},
            {"hysteresis_left", run.loss_scaler.hysteresis_left}}},
          {"seed", hex64(run.seed)},
          {"cursor", {{"epoch", run.cursor.epoch}, {"position", run.cursor.position}}},
          {"global_batch", run.global_batch},
          {"sequence_length", run.sequence_length},
          {"data", run.data},
          {"config", run.config_json}};
}

// A program that knows no other state can read this.
std::int64_t version_of(const StateFormat& state) { return state == StateFormat{} ? 1 : kVersion; }

Json tensor_json(const Manifest& manifest, const TensorEntry& tensor) {
  Json hashes = Json::object();
  for (const StateSection section : manifest.sections_of(tensor)) {
    hashes[std::string(name_of(section))] = hex64(tensor.hashes[static_cast<std::size_t>(section)]);
  }
  return {{"name", tensor.name}, {"shape", tensor.shape}, {"frozen", tensor.frozen}, {"hashes", hashes}};
}

// A JSON object that is read field by field; what is missing or of another type is an IoError naming it.
class Fields {
 public:
  Fields(const Json& json, std::string path, const std::string& file) : json_(json), path_(std::move(path)), file_(file) {
    if (!json.is_object()) bad(path_, "an object");
  }

  std::int64_t integer(const char* name, std::int64_t low = 0) const {
    const Json& value = at(name);
    // An unsigned number may be too large for the signed type.
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX});
    if (!fits || value.get<std::int64_t>() < low) bad(path_to(name), fmt::format("an integer of at least {}", low));
    return value.get<std::int64_t>();
  }
  double number(const char* name) const {
    if (!at(name).is_number()) bad(path_to(name), "a number");
    return at(name).get<double>();
  }
  bool has(const char* name) const { return json_.contains(name); }
  bool boolean(const char* name) const {
    if (!at(name).is_boolean()) bad(path_to(name), "true or false");
    return at(name).get<bool>();
  }
  std::string text(const char* name) const {
    if (!at(name).is_string()) bad(path_to(name), "a string");
    return at(name).get<std::string>();
  }
  std::uint64_t hex(const char* name) const {
    const std::string digits = text(name);
    const bool valid = digits.size() == 16 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!valid) bad(path_to(name), "16 hexadecimal digits");
    return std::stoull(digits, nullptr, 16);
  }
  Fields object(const char* name) const { return Fields(at(name), path_to(name), file_); }
  const Json& array(const char* name) const {
    if (!at(name).is_array()) bad(path_to(name), "an array");
    return at(name);
  }
  std::string path_to(std::string_view name) const { return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name); }

  [[noreturn]] void bad(const std::string& path, std::string_view expected) const {
    throw IoError(fmt::format("[checkpoint] read {}: {} is not {}; use another checkpoint", file_,
                              path.empty() ? "the document" : path, expected));
  }

 private:
  const Json& at(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) bad(path_to(name), "there");
    return *found;
  }

  const Json& json_;
  std::string path_;
  const std::string& file_;
};

ModelSpec read_model(const Fields& fields) {
  ModelSpec model;
  model.name = fields.text("name");
  model.layers = fields.integer("layers");
  model.channels = fields.integer("channels");
  model.heads = fields.integer("heads");
  model.vocabulary = fields.integer("vocabulary");
  model.context = fields.integer("context");
  model.mlp_channels = fields.integer("mlp_channels");
  model.layernorm_epsilon = static_cast<float>(fields.number("layernorm_epsilon"));
  return model;
}

RunState read_run(const Fields& fields, const Fields& written_by) {
  RunState run;
  run.step = fields.integer("step");
  run.applied_steps = fields.integer("applied_steps");
  run.skipped_steps = fields.integer("skipped_steps");
  const Fields scaler = fields.object("loss_scaler");
  run.loss_scaler.scale = scaler.number("scale");
  run.loss_scaler.updates = scaler.integer("updates");
  run.loss_scaler.last_overflow = scaler.integer("last_overflow", -1);
  run.loss_scaler.hysteresis_left = static_cast<int>(std::min<std::int64_t>(scaler.integer("hysteresis_left"), INT32_MAX));
  run.seed = fields.hex("seed");
  const Fields cursor = fields.object("cursor");
  run.cursor = {cursor.integer("epoch"), cursor.integer("position")};
  run.global_batch = fields.integer("global_batch");
  run.sequence_length = fields.integer("sequence_length");
  run.data = fields.text("data");
  run.config_json = fields.text("config");
  run.world_size = written_by.integer("world_size", 1);
  run.zero_stage = written_by.integer("zero_stage");
  run.spillway_version = written_by.text("spillway");
  return run;
}

DType read_dtype(const Fields& fields) {
  const std::string name = fields.text("dtype");
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (name_of(dtype) == name) return dtype;
  }
  fields.bad("dtype", "fp32, bf16 or fp16");
}

StateFormat read_state(const Fields& fields) {
  StateFormat state;
  if (!fields.has("optimizer")) return state;
  const Fields optimizer = fields.object("optimizer");
  const std::string kind = optimizer.text("kind"), moments = optimizer.text("moments");
  std::vector<std::string_view> kinds, formats;
  for (int k = 0; k < kOptimizerKinds; ++k) kinds.push_back(traits_of(static_cast<OptimizerKind>(k)).name);
  for (int f = 0; f < kMomentFormats; ++f) formats.push_back(name_of(static_cast<MomentFormat>(f)));
  const auto found = std::ranges::find(kinds, kind);
  const auto format = std::ranges::find(formats, moments);
  if (found == kinds.end()) optimizer.bad(optimizer.path_to("kind"), fmt::format("one of {}", fmt::join(kinds, ", ")));
  if (format == formats.end()) optimizer.bad(optimizer.path_to("moments"), fmt::format("one of {}", fmt::join(formats, ", ")));
  return {static_cast<OptimizerKind>(found - kinds.begin()), static_cast<MomentFormat>(format - formats.begin())};
}

// Sizes up to this cannot overflow when multiplied by the size of an element.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 58;

TensorEntry read_tensor(const Fields& fields, const Manifest& manifest) {
  TensorEntry tensor;
  tensor.name = fields.text("name");
  tensor.frozen = fields.boolean("frozen");
  std::int64_t elements = 1;
  for (const Json& dimension : fields.array("shape")) {
    const bool fits = dimension.is_number_unsigned() && dimension.get<std::uint64_t>() <= std::uint64_t{kMaxElements};
    const std::int64_t extent = fits ? dimension.get<std::int64_t>() : 0;
    if (!fits || (extent > 0 && elements > kMaxElements / extent)) fields.bad(fields.path_to("shape"), "a possible shape");
    elements *= extent;
    tensor.shape.push_back(extent);
  }
  const Fields hashes = fields.object("hashes");
  for (const StateSection section : manifest.sections_of(tensor)) {
    tensor.hashes[static_cast<std::size_t>(section)] = hashes.hex(std::string(name_of(section)).c_str());
  }
  return tensor;
}

FileEntry read_file_entry(const Fields& fields) {
  FileEntry entry{fields.text("name"), fields.integer("bytes")};
  // A name that leads out of the folder is not one we wrote.
  if (entry.name.empty() || entry.name.find('/') != std::string::npos || entry.name[0] == '.') {
    fields.bad(fields.path_to("name"), "the name of a file in the checkpoint's folder");
  }
  return entry;
}

using TensorIndex = std::map<std::string, std::size_t, std::less<>>;

Piece read_piece(const Fields& fields, const Manifest& manifest, const TensorIndex& index) {
  const auto tensor = index.find(fields.text("tensor"));
  if (tensor == index.end()) fields.bad(fields.path_to("tensor"), "one of the tensors");
  Piece piece{};
  piece.tensor = tensor->second;
  const TensorEntry& entry = manifest.tensors[piece.tensor];
  const std::string section = fields.text("section");
  const auto sections = manifest.sections_of(entry);
  const auto found = std::ranges::find_if(sections, [&](StateSection s) { return name_of(s) == section; });
  if (found == sections.end()) fields.bad(fields.path_to("section"), "a section of this tensor");
  piece.section = *found;
  piece.begin = fields.integer("begin");
  piece.end = fields.integer("end");
  if (piece.begin >= piece.end || piece.end > entry.num_elements()) fields.bad(fields.path_to("end"), "within the tensor");
  if (piece.num_elements() > kMaxPieceElements) fields.bad(fields.path_to("end"), "within reach of the largest piece");
  piece.file = static_cast<std::size_t>(fields.integer("file"));
  if (piece.file >= manifest.files.size()) fields.bad(fields.path_to("file"), "the number of a file");
  piece.checksum = fields.hex("xxh3");
  return piece;
}

// Format and version come first: only of a file that is ours can it be said that it is damaged.
Json parse_document(std::string_view text, const std::string& file) {
  Json json;
  try {
    json = Json::parse(text, [](int depth, Json::parse_event_t, const Json&) {
      if (depth > kDeepest) throw IoError("nested too deeply");
      return true;
    });
  } catch (const std::exception& error) {
    throw IoError(fmt::format("[checkpoint] read {}: it is cut short or damaged ({}); use another checkpoint", file, error.what()));
  }
  const Fields fields(json, "", file);
  if (fields.text("format") != kFormat) {
    throw IoError(fmt::format("[checkpoint] read {}: it is not the manifest of a Spillway checkpoint; name the folder of one", file));
  }
  if (const std::int64_t version = fields.integer("version"); version < 1 || version > kVersion) {
    throw IoError(fmt::format("[checkpoint] read {}: version {} of the format is unknown, this program reads versions 1 to {}; use the "
                              "program that wrote it",
                              file, version, kVersion));
  }
  const std::uint64_t stated = fields.hex("checksum");
  json.erase("checksum");
  if (const std::uint64_t found = checksum_of(json); found != stated) {
    throw IoError(fmt::format("[checkpoint] read {}: it was altered after it was written (checksum {}, stated {}); use another "
                              "checkpoint",
                              file, hex64(found), hex64(stated)));
  }
  return json;
}

}  // namespace

std::int64_t TensorInfo::num_elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

std::string key_of(const Manifest& manifest, const Piece& piece) {
  return fmt::format("{}|{}|{}|{}", manifest.tensors[piece.tensor].name, name_of(piece.section), piece.begin, piece.end);
}

std::uint64_t state_hash_of(const std::vector<TensorEntry>& tensors, std::int64_t applied_steps) {
  std::uint64_t sum = 0;
  for (const TensorEntry& tensor : tensors) {
    for (const std::uint64_t hash : tensor.hashes) sum += hash;
  }
  return combine_state_hash(sum, applied_steps);
}

std::string to_json(const Manifest& manifest) {
  Json json = {{"format", kFormat},
               {"version", version_of(manifest.state)},
               {"model", model_json(manifest.model)},
               {"dtype", name_of(manifest.dtype)},
               {"optimizer", {{"kind", traits_of(manifest.state.kind).name}, {"moments", name_of(manifest.state.moments)}}},
               {"state_hash", hex64(manifest.state_hash)},
               {"run", run_json(manifest.run)},
               {"written_by",
                {{"spillway", manifest.run.spillway_version},
                 {"world_size", manifest.run.world_size},
                 {"zero_stage", manifest.run.zero_stage}}}};
  Json& tensors = json["tensors"] = Json::array();
  for (const TensorEntry& tensor : manifest.tensors) tensors.push_back(tensor_json(manifest, tensor));
  Json& files = json["files"] = Json::array();
  for (const FileEntry& file : manifest.files) files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  Json& pieces = json["pieces"] = Json::array();
  for (const Piece& piece : manifest.pieces) {
    pieces.push_back({{"tensor", manifest.tensors[piece.tensor].name},
                      {"section", name_of(piece.section)},
                      {"begin", piece.begin},
                      {"end", piece.end},
                      {"file", piece.file},
                      {"xxh3", hex64(piece.checksum)}});
  }
  // Of what a reader will see, which is not the same where invalid UTF-8 was replaced.
  json = Json::parse(dump(json));
  json["checksum"] = hex64(checksum_of(json));
  return dump(json, 1) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& file) {
  const Json json = parse_document(text, file);
  const Fields fields(json, "", file);
  Manifest manifest;
  manifest.model = read_model(fields.object("model"));
  manifest.dtype = read_dtype(fields);
  manifest.state = read_state(fields);
  manifest.run = read_run(fields.object("run"), fields.object("written_by"));
  manifest.state_hash = fields.hex("state_hash");
  TensorIndex index;
  for (const Json& tensor : fields.array("tensors")) {
    const Fields entry(tensor, fmt::format("tensors[{}]", manifest.tensors.size()), file);
    manifest.tensors.push_back(read_tensor(entry, manifest));
    if (!index.emplace(manifest.tensors.back().name, manifest.tensors.size() - 1).second) entry.bad(entry.path_to("name"), "unique");
  }
  for (const Json& entry : fields.array("files")) {
    manifest.files.push_back(read_file_entry(Fields(entry, fmt::format("files[{}]", manifest.files.size()), file)));
  }
  for (const Json& piece : fields.array("pieces")) {
    const Fields entry(piece, fmt::format("pieces[{}]", manifest.pieces.size()), file);
    manifest.pieces.push_back(read_piece(entry, manifest, index));
  }
  return manifest;
}

}  // namespace spillway::checkpoint
