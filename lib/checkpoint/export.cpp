#include "checkpoint/export.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <new>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/folders.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/sequential_file.h"
#include "base/values.h"
#include "spillway/error.h"

namespace spillway::checkpoint {

namespace {

constexpr std::align_val_t kPage{SequentialFile::kAlignment};
constexpr std::size_t kBufferBytes = 4 << 20;

// One file to be.
struct Shard {
  std::string name;
  std::vector<SafetensorsEntry> entries;
  std::int64_t bytes = 0;
};

// The tensors of the model, in its order; the checkpoint has exactly these.
std::vector<ParamSpec> checked_params(const Reader& reader) {
  std::map<std::string_view, const TensorEntry*> there;
  for (const TensorEntry& tensor : reader.manifest().tensors) there.emplace(tensor.name, &tensor);
  const auto refuse = [&](const std::string& name, std::string_view why) {
    throw IoError(fmt::format("[checkpoint] export {}: '{}' {}; use a complete checkpoint", reader.folder(), name, why));
  };
  std::vector<ParamSpec> params;
  for (const auto& layer : make_layers(reader.manifest().model)) {
    for (const ParamSpec& param : layer->params()) {
      const auto tensor = there.find(param.name);
      if (tensor == there.end()) refuse(param.name, "is a tensor of the model and not there");
      if (tensor->second->num_elements() == 0) refuse(param.name, "is empty");
      if (tensor->second->shape != param.shape) refuse(param.name, "has another shape than in the model");
      there.erase(tensor);
      params.push_back(param);
    }
  }
  if (!there.empty()) refuse(there.begin()->second->name, "is no tensor of the model");
  return params;
}

std::vector<Shard> cut_into_shards(const std::vector<ParamSpec>& params, const ExportOptions& options) {
  std::vector<Shard> shards(1);
  for (const ParamSpec& param : params) {
    const std::int64_t bytes = param.num_elements * size_of(options.dtype);
    const bool full = options.max_file_bytes > 0 && shards.back().bytes > 0 && shards.back().bytes + bytes > options.max_file_bytes;
    if (full) shards.emplace_back();
    Shard& shard = shards.back();
    shard.entries.push_back({param.name, options.dtype, param.shape, shard.bytes, shard.bytes + bytes});
    shard.bytes += bytes;
  }
  for (std::size_t s = 0; s < shards.size(); ++s) {
    shards[s].name = shards.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
  }
  return shards;
}

// The names that loaders of sharded models look for.
std::string index_json(const std::vector<Shard>& shards, std::int64_t total_bytes) {
  nlohmann::ordered_json json = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", nlohmann::ordered_json::object()}};
  for (const Shard& shard : shards) {
    for (const SafetensorsEntry& entry : shard.entries) json["weight_map"][entry.name] = shard.name;
  }
  return json.dump(2) + "\n";
}

class Exporter {
 public:
  Exporter(Reader& reader, const ExportOptions& options)
      : reader_(reader),
        options_(options),
        buffer_(static_cast<std::byte*>(::operator new(kBufferBytes, kPage))),
        values_(kMaxPieceElements / 4),
        rounded_(values_.size()),
        bytes_(values_.size() * static_cast<std::size_t>(size_of(options.dtype))) {}

  void write(const Shard& shard, const std::string& folder) {
    const std::string header = safetensors_header(shard.entries, {{"format", "pt"}});
    SequentialFile file(folder + "/" + shard.name, static_cast<std::int64_t>(header.size()) + shard.bytes, {buffer_.get(), kBufferBytes});
    file.append(std::as_bytes(std::span(header)));
    for (const SafetensorsEntry& entry : shard.entries) write_tensor(entry, file);
    file.finish();
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kPage); }
  };

  void write_tensor(const SafetensorsEntry& entry, SequentialFile& file) {
    const std::int64_t elements = (entry.end - entry.begin) / size_of(options_.dtype);
    for (std::int64_t begin = 0; begin < elements;) {
      const auto count = std::min(values_.size(), static_cast<std::size_t>(elements - begin));
      const auto values = std::span(values_).first(count);
      reader_.read(entry.name, StateSection::master, begin, values);
      check(entry.name, begin, values);
      const auto bytes = std::span(bytes_).first(count * static_cast<std::size_t>(size_of(options_.dtype)));
      narrow(options_.dtype, values, bytes);
      file.append(bytes);
      begin += static_cast<std::int64_t>(count);
    }
  }

  void check(const std::string& name, std::int64_t begin, std::span<const float> values) {
    const auto rounded = std::span(rounded_).first(values.size());
    std::ranges::copy(values, rounded.begin());
    round_values(options_.dtype, rounded);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(rounded[i]) || (options_.allow_non_finite && !std::isfinite(values[i]))) continue;
      const std::string where = fmt::format("[checkpoint] export {}: element {} of '{}' is {}", reader_.folder(),
                                            begin + static_cast<std::int64_t>(i), name, values[i]);
      if (std::isfinite(values[i])) throw IoError(fmt::format("{}, too large for {}; export as bf16 or fp32", where, name_of(options_.dtype)));
      throw IoError(fmt::format("{}; the model has diverged, export an earlier checkpoint or allow values that are not finite", where));
    }
  }

  Reader& reader_;
  const ExportOptions& options_;
  std::unique_ptr<std::byte, Free> buffer_;
  std::vector<float> values_, rounded_;
  std::vector<std::byte> bytes_;
};

std::string without_trailing_slash(const std::string& path) {
  const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).string();
}

void refuse_occupied(const std::string& target) {
  throw IoError(fmt::format("[checkpoint] export to {}: something is there and is not overwritten; name a new or an empty folder", target));
}

}  // namespace

ExportResult export_weights(Reader& reader, const std::string& given_target, const ExportOptions& options) {
  const std::string target = without_trailing_slash(given_target);
  std::error_code ignored;
  const bool occupied = std::filesystem::exists(std::filesystem::symlink_status(target, ignored)) &&
                        !(std::filesystem::is_directory(target, ignored) && names_in(target).empty());
  if (occupied) refuse_occupied(target);
  const std::vector<Shard> shards = cut_into_shards(checked_params(reader), options);
  ExportResult result;
  for (const Shard& shard : shards) result.bytes += shard.bytes;

  const std::string parent = parent_of(target);
  std::error_code failed;
  std::filesystem::create_directories(parent, failed);
  if (failed) throw_system_error("make the folder", parent, failed.value());
  remove_stale(parent, [&](std::string_view name) { return name == name_in_parent(target); });
  constexpr std::int64_t kFileOverheadBytes = 1 << 16;  // headers, and blocks that are not full
  require_space(fmt::format("export to {}", target), parent, result.bytes + kFileOverheadBytes * static_cast<std::int64_t>(shards.size() + 1));

  TemporaryFolder folder(target);
  Exporter exporter(reader, options);
  for (const Shard& shard : shards) {
    exporter.write(shard, folder.path());
    result.files.push_back(target + "/" + shard.name);
  }
  if (shards.size() > 1) {
    write_durably(folder.path() + "/model.safetensors.index.json", index_json(shards, result.bytes));
    result.files.push_back(target + "/model.safetensors.index.json");
  }
  if (!folder.publish(false)) refuse_occupied(target);
  return result;
}

}  // namespace spillway::checkpoint
