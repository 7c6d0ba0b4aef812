// The header of a safetensors file: eight bytes of length, then JSON that gives each tensor's dtype, shape and range of
// the data that follows (https://github.com/huggingface/safetensors, "Format"). The ranges leave no holes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "spillway/dtype.h"

namespace spillway::checkpoint {

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin;  // bytes of the data
  std::int64_t end;
};

struct SafetensorsHeader {
  std::int64_t data_offset;               // where the data begins in the file
  std::vector<SafetensorsEntry> entries;  // in the order of their data
};

// What a file starts with, before its data. Entries in the order of their data, without holes.
std::string safetensors_header(const std::vector<SafetensorsEntry>& entries, const std::map<std::string, std::string>& metadata);

// Opens a file, reads its header and checks that the file is exactly as long as the header says. Throws IoError
// naming the file otherwise.
SafetensorsHeader read_safetensors_header(const std::string& path);

}  // namespace spillway::checkpoint
