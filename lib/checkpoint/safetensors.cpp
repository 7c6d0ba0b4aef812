#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/file_system.h"
#include "spillway/error.h"

namespace spillway::checkpoint {

namespace {

// Sorted maps: a header has as many keys as there are pieces, which the ordered kind of this library searches one by one.
using Json = nlohmann::json;

constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own readers
constexpr std::int64_t kLengthBytes = 8;

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr DTypeName kDTypeNames[] = {{DType::f32, "F32"}, {DType::bf16, "BF16"}, {DType::f16, "F16"}};

std::string_view format_name(DType dtype) {
  return std::ranges::find(kDTypeNames, dtype, &DTypeName::dtype)->name;
}

[[noreturn]] void bad(const std::string& path, const std::string& what) {
  throw IoError(fmt::format("[checkpoint] read {}: {}; the file is damaged or no safetensors file, use another checkpoint", path, what));
}

std::int64_t size_field(const Json& json, const std::string& path, const std::string& name) {
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
    bad(path, fmt::format("its header has no valid size or offset for '{}'", name));
  }
  return json.get<std::int64_t>();
}

SafetensorsEntry read_entry(const Json& json, const std::string& path, const std::string& name, std::int64_t data_bytes) {
  const auto field = [&](const char* key) -> const Json& {
    if (!json.is_object() || !json.contains(key)) bad(path, fmt::format("its header gives no {} for '{}'", key, name));
    return json[key];
  };
  SafetensorsEntry entry{.name = name, .dtype = DType::f32, .shape = {}, .begin = 0, .end = 0};
  const Json& dtype = field("dtype");
  const auto known = std::ranges::find_if(kDTypeNames, [&](const DTypeName& d) { return dtype.is_string() && dtype == d.name; });
  if (known == std::end(kDTypeNames)) bad(path, fmt::format("its header gives '{}' a dtype that is not F32, BF16 or F16", name));
  entry.dtype = known->dtype;

  const Json& offsets = field("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) bad(path, fmt::format("its header has no two offsets for '{}'", name));
  entry.begin = size_field(offsets[0], path, name);
  entry.end = size_field(offsets[1], path, name);
  if (entry.begin > entry.end || entry.end > data_bytes) {
    bad(path, fmt::format("'{}' is said to be bytes {} to {} of {}", name, entry.begin, entry.end, data_bytes));
  }
  const Json& shape = field("shape");
  if (!shape.is_array()) bad(path, fmt::format("its header has no shape for '{}'", name));
  // Never above the size of the file, so that no product overflows.
  std::int64_t elements = 1;
  for (const Json& dimension : shape) {
    const std::int64_t extent = size_field(dimension, path, name);
    if (extent > 0 && elements > data_bytes / extent) bad(path, fmt::format("the shape of '{}' is larger than the file", name));
    elements *= extent;
    entry.shape.push_back(extent);
  }
  if (elements * size_of(entry.dtype) != entry.end - entry.begin) {
    bad(path, fmt::format("'{}' has {} elements and {} bytes", name, elements, entry.end - entry.begin));
  }
  return entry;
}

Json read_json(const Descriptor& file, const std::string& path, std::int64_t file_bytes, std::int64_t& header_bytes) {
  std::uint64_t length = 0;
  if (file_bytes < kLengthBytes) bad(path, fmt::format("it has {} bytes, fewer than a header", file_bytes));
  read_at(file, 0, std::as_writable_bytes(std::span(&length, 1)), path);
  if (length > static_cast<std::uint64_t>(std::min(kMaxHeaderBytes, file_bytes - kLengthBytes))) {
    bad(path, fmt::format("its header is said to have {} bytes, the file has {}", length, file_bytes));
  }
  header_bytes = static_cast<std::int64_t>(length);
  std::string text(static_cast<std::size_t>(length), '\0');
  read_at(file, kLengthBytes, std::as_writable_bytes(std::span(text)), path);
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) bad(path, "its header is not a JSON object");
  return json;
}

}  // namespace

std::string safetensors_header(const std::vector<SafetensorsEntry>& entries, const std::map<std::string, std::string>& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  for (const SafetensorsEntry& entry : entries) {
    json[entry.name] = {{"dtype", format_name(entry.dtype)}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned for every dtype
  const std::uint64_t length = text.size();      // little-endian, as are all machines this runs on
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  return header + text;
}

SafetensorsHeader read_safetensors_header(const std::string& path) {
  const Descriptor file = open_for_reading(path);
  const std::int64_t file_bytes = size_of_file(file, path);
  std::int64_t header_bytes = 0;
  const Json json = read_json(file, path, file_bytes, header_bytes);

  SafetensorsHeader header{.data_offset = kLengthBytes + header_bytes, .entries = {}};
  const std::int64_t data_bytes = file_bytes - header.data_offset;
  for (const auto& [name, value] : json.items()) {
    if (name != "__metadata__") header.entries.push_back(read_entry(value, path, name, data_bytes));
  }
  std::ranges::sort(header.entries, {}, [](const SafetensorsEntry& entry) { return std::pair(entry.begin, entry.end); });
  std::int64_t end = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin != end) bad(path, fmt::format("'{}' begins at byte {}, where the one before it ends at {}", entry.name, entry.begin, end));
    end = entry.end;
  }
  if (end != data_bytes) bad(path, fmt::format("it holds {} bytes of data, its header names {}", data_bytes, end));
  return header;
}

}  // namespace spillway::checkpoint
