// One typed slot that a configuration key binds to, and the two directions between it and JSON.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/json_value.h"
#include "config/problems.h"

namespace spillway::config {

// Slots whose C++ type alone does not say how the key is written.
struct Bytes { std::optional<std::int64_t>* bytes; };       // 50331648 or "48MiB"
struct Elements { std::int64_t* elements; };                // 4194304, 4e6 or "4Mi"; a fraction is cut off
struct Folders { std::vector<std::string>* folders; };      // "/swap", or a list of such; none is empty; no folder twice
struct Numbers { std::optional<std::array<double, 2>>* numbers; };  // a list of two
struct Strings { std::vector<std::string>* strings; };      // a list of strings, or one string; none is empty
struct Word { std::string* word; std::span<const std::string_view> words; };
struct OptionalWord { std::optional<std::string>* word; std::span<const std::string_view> words; };
struct Choice { std::uint8_t* index; std::span<const std::string_view> words; };  // an enum; "" is written as absent

using Field = std::variant<bool*, std::optional<bool>*, int*, std::int64_t*, std::optional<std::int64_t>*, double*,
                           std::optional<double>*, std::string*, Bytes, Elements, Folders, Numbers, Strings, Word,
                           OptionalWord, Choice>;

template <class Enum>
Choice choice(Enum& value, std::span<const std::string_view> words) {
  static_assert(sizeof(Enum) == 1);
  return {reinterpret_cast<std::uint8_t*>(&value), words};
}

// Values a number may have.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_allowed = true;
  bool high_allowed = true;
};

// Where a value stands, for messages.
struct Place {
  std::string_view path;
  int line;
  Problems& problems;
};

// Puts `value` into the slot, or reports one error at `place` and leaves the slot alone. Numbers and booleans
// written as strings are taken with a warning.
void read_field(const Field& field, const Range& range, const Value& value, const Place& place);

// What read_field would read back; null when the slot is unset.
Value write_field(const Field& field);

// The values above as they are written; reports an error and returns nothing for another type.
std::optional<bool> read_boolean(const Value& value, const Place& place);
std::optional<double> read_number(const Value& value, const Place& place);

}  // namespace spillway::config
