// From the JSON that people write to the JSON of the standard: comments (//, /* */, #) and a byte order mark
// become spaces, commas before a closing bracket too, and bare words other than true, false, null get quotes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::config {

struct StrictJson {
  std::string text;
  std::vector<std::size_t> insertions;  // offsets in `text` of quotes that the source does not have, ascending
};

// Never fails: what is not JSON stays for the parser to complain about.
StrictJson to_strict_json(std::string_view source);

// The offset in the source of the byte at `offset` in `strict.text`.
std::size_t source_offset(const StrictJson& strict, std::size_t offset);

}  // namespace spillway::config
