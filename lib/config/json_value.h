// A parsed JSON document that remembers on which line everything stood, and the two ways between it and text.
// Accepts what people's DeepSpeed files hold beyond JSON: comments, trailing commas, bare words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace spillway::config {

struct Value;

struct Member;
using Object = std::vector<Member>;  // in the order of the file
using Array = std::vector<Value>;

// One JSON value. Integers that fit are kept as such; every other number is a double.
struct Value {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> data;

  bool is_null() const { return std::holds_alternative<std::monostate>(data); }
  const Object* object() const { return std::get_if<Object>(&data); }
  Object* object() { return std::get_if<Object>(&data); }
  const std::string* string() const { return std::get_if<std::string>(&data); }
};

struct Member {
  std::string key;
  Value value;
  int line = 0;  // of the key, from 1; 0: not from a file
};

// The member named `key`, or nullptr.
const Value* find(const Object& object, std::string_view key);

// Parses one JSON object. Throws ConfigError "<file>:<line>:<column>: ..." for text that is not JSON and
// "<file>:<line>: ..." for a key given twice in one object.
Object parse_object(const std::string& text, const std::string& file);

// Compact JSON on one line; numbers in the fewest digits that read back exactly.
std::string to_json(const Value& value);

// JSON in the layout of configuration files, two spaces a level.
std::string to_pretty_json(const Object& object);

}  // namespace spillway::config
