#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "config/json_value.h"
#include "config/relaxed_json.h"
#include "spillway/error.h"

namespace spillway::config {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kDeepest = 64;

// Reads characters and tells how many were read, so that the handler below knows the line it is on.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, std::size_t* count) : at_(at), count_(count) {}

  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*count_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  std::size_t* count_;
};

// Builds the document from the parser's events.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(const StrictJson& strict, const std::string& source, const std::string& file)
      : strict_(strict), source_(source), file_(file) {}

  std::size_t* consumed() { return &consumed_; }
  Value take_root() { return std::move(root_); }

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add({value}); }
  bool number_integer(number_integer_t value) override { return add({std::int64_t{value}}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return add({static_cast<double>(value)});
    return add({static_cast<std::int64_t>(value)});
  }
  bool number_float(number_float_t value, const string_t&) override { return add({value}); }
  bool string(string_t& value) override { return add({std::move(value)}); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open({Object{}}); }
  bool start_array(std::size_t) override { return open({Array{}}); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Object& object = *open_.back()->object();
    const int line = line_and_column(consumed_).first;
    for (const Member& member : object) {
      if (member.key == name) {
        throw ConfigError(fmt::format("{}:{}: \"{}\" is given a second time in the same object (first on line {}); "
                                      "keep one of them", file_, line, name, member.line));
      }
    }
    object.push_back({std::move(name), {}, line});
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token, const Json::exception& error) override {
    // The parser counts from 1 and has read the offending byte.
    const auto [line, column] = line_and_column(position == 0 ? 0 : position - 1);
    std::string reason = error.what();
    if (const std::size_t at = reason.find(": "); at != std::string::npos) reason = reason.substr(at + 2);
    if (const std::size_t at = reason.find("; last read"); at != std::string::npos) reason.resize(at);
    throw ConfigError(fmt::format("{}:{}:{}: not valid JSON near \"{}\": {}", file_, line, column, token, reason));
  }

 private:
  Value& slot() {
    if (open_.empty()) return root_;
    if (Object* object = open_.back()->object()) return object->back().value;
    return std::get<Array>(open_.back()->data).emplace_back();
  }

  bool add(Value value) {
    slot() = std::move(value);
    return true;
  }

  bool open(Value value) {
    if (open_.size() == kDeepest) {
      throw ConfigError(fmt::format("{}:{}: more than {} objects and lists inside each other", file_,
                                    line_and_column(consumed_).first, kDeepest));
    }
    Value& target = slot();
    target = std::move(value);
    open_.push_back(&target);  // stays valid: its container does not grow while it is open
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::pair<int, int> line_and_column(std::size_t strict_offset) const {
    const std::size_t offset = std::min(source_offset(strict_, strict_offset), source_.size());
    const std::string_view before = std::string_view(source_).substr(0, offset);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const std::size_t line_start = before.rfind('\n');
    const std::size_t column = line_start == std::string_view::npos ? offset + 1 : offset - line_start;
    return {static_cast<int>(line), static_cast<int>(column)};
  }

  const StrictJson& strict_;
  const std::string& source_;
  const std::string& file_;
  std::size_t consumed_ = 0;
  Value root_;
  std::vector<Value*> open_;
};

Json to_nlohmann(const Value& value) {
  struct Visitor {
    Json operator()(std::monostate) const { return nullptr; }
    Json operator()(bool x) const { return x; }
    Json operator()(std::int64_t x) const { return x; }
    Json operator()(double x) const { return std::isfinite(x) ? Json(x) : Json(fmt::format("{}", x)); }
    Json operator()(const std::string& x) const { return x; }
    Json operator()(const Array& x) const {
      Json array = Json::array();
      for (const Value& element : x) array.push_back(to_nlohmann(element));
      return array;
    }
    Json operator()(const Object& x) const {
      Json object = Json::object();
      for (const Member& member : x) object[member.key] = to_nlohmann(member.value);
      return object;
    }
  };
  return std::visit(Visitor{}, value.data);
}

}  // namespace

const Value* find(const Object& object, std::string_view key) {
  for (const Member& member : object) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

Object parse_object(const std::string& text, const std::string& file) {
  const StrictJson strict = to_strict_json(text);
  const std::size_t start = strict.text.find_first_not_of(" \t\r\n");
  if (start == std::string::npos) {
    throw ConfigError(fmt::format("{}: the file holds no JSON; expected one object, {{ ... }}", file));
  }
  if (strict.text[start] != '{') {
    const bool accelerate = text.find("deepspeed_config") != std::string::npos;
    throw ConfigError(fmt::format(
        "{}: not a JSON object: it has to start with {{ but starts with '{}'{}", file,
        text[source_offset(strict, start)],
        accelerate ? "; this looks like an Accelerate YAML file: pass the JSON file it names, or write its "
                     "deepspeed_config section as JSON" : ""));
  }
  Builder builder(strict, text, file);
  const char* begin = strict.text.data();
  Json::sax_parse(CountingIterator(begin, builder.consumed()),
                  CountingIterator(begin + strict.text.size(), builder.consumed()), &builder);
  Value root = builder.take_root();
  return std::move(*root.object());
}

std::string to_json(const Value& value) { return to_nlohmann(value).dump(); }

std::string to_pretty_json(const Object& object) { return to_nlohmann({object}).dump(2); }

}  // namespace spillway::config
