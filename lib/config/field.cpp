#include "config/field.h"

#include <algorithm>
#include <charconv>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "base/text.h"
#include "config/nvme_folders.h"
#include "spillway/config.h"
#include "spillway/error.h"

namespace spillway::config {

namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string describe(const Value& value) {
  constexpr std::size_t longest = 60;
  std::string json = to_json(value);
  if (json.size() > longest) json = json.substr(0, longest) + "...";
  return json;
}

void expected(std::string_view what, const Value& value, const Place& place) {
  place.problems.error(place.path, place.line, fmt::format("expected {}, found {}", what, describe(value)));
}

std::optional<double> number_in(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool contains(const Range& range, double x) {
  return (range.low_allowed ? x >= range.low : x > range.low) && (range.high_allowed ? x <= range.high : x < range.high);
}

std::string describe(const Range& range) {
  const std::string low = fmt::format("{} {}", range.low_allowed ? "at least" : "more than", range.low);
  const std::string high = fmt::format("{} {}", range.high_allowed ? "at most" : "less than", range.high);
  if (std::isinf(range.high)) return low;
  return std::isinf(range.low) ? high : low + " and " + high;
}

bool check_range(const Range& range, double x, const Value& value, const Place& place) {
  if (contains(range, x)) return true;
  place.problems.error(place.path, place.line, fmt::format("{} is out of range; allowed: {}", describe(value),
                                                           describe(range)));
  return false;
}

std::optional<double> read_finite(const Range& range, const Value& value, const Place& place) {
  const std::optional<double> x = read_number(value, place);
  if (!x) return std::nullopt;
  if (!std::isfinite(*x)) {
    expected("a finite number", value, place);
    return std::nullopt;
  }
  return check_range(range, *x, value, place) ? x : std::nullopt;
}

std::optional<std::int64_t> read_integer(const Range& range, const Value& value, const Place& place) {
  if (const std::int64_t* exact = std::get_if<std::int64_t>(&value.data)) {
    return check_range(range, static_cast<double>(*exact), value, place) ? std::optional(*exact) : std::nullopt;
  }
  const std::optional<double> x = read_number(value, place);
  if (!x || !(std::isinf(*x) || *x == std::floor(*x))) {
    if (x) expected("a whole number", value, place);
    return std::nullopt;
  }
  if (!check_range(range, *x, value, place)) return std::nullopt;
  // "inf" for "never", as Accelerate writes steps_per_print, and sizes such as 1e19: as far as counting goes.
  if (*x >= 0x1p63) return std::numeric_limits<std::int64_t>::max();
  if (*x < -0x1p63) return std::numeric_limits<std::int64_t>::min();
  return static_cast<std::int64_t>(*x);
}

std::optional<std::int64_t> read_elements(const Range& range, const Value& value, const Place& place) {
  if (std::holds_alternative<std::int64_t>(value.data)) return read_integer(range, value, place);
  if (const std::string* text = value.string()) {
    for (const auto& [suffix, shift] : {std::pair{"Ki", 10}, std::pair{"Mi", 20}, std::pair{"Gi", 30}}) {
      if (!text->ends_with(suffix)) continue;
      const std::optional<double> count = number_in(std::string_view(*text).substr(0, text->size() - 2));
      if (count) return read_integer(range, {std::ldexp(*count, shift)}, place);
    }
  }
  const std::optional<double> x = read_finite(range, value, place);
  if (!x) return std::nullopt;
  const double whole = std::floor(*x);
  if (whole != *x) {
    place.problems.warning(place.path, place.line, fmt::format("{} is not a whole number; using {}", describe(value),
                                                               whole));
  }
  return read_integer(range, {whole}, place);
}

std::optional<std::int64_t> read_bytes(const Value& value, const Place& place) {
  const std::string* text = value.string();
  try {
    const std::int64_t bytes = parse_bytes(text != nullptr ? *text : to_json(value), std::string(place.path));
    return bytes;
  } catch (const ConfigError&) {
    expected("a size: bytes, or a number with a unit such as \"48MiB\" or \"1.5GB\"", value, place);
    return std::nullopt;
  }
}

std::optional<std::array<double, 2>> read_numbers(const Range& range, const Value& value, const Place& place) {
  const Array* list = std::get_if<Array>(&value.data);
  if (list == nullptr || list->size() != 2) {
    expected("a list of two numbers", value, place);
    return std::nullopt;
  }
  std::array<double, 2> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::optional<double> x = read_finite(range, (*list)[i], place);
    if (!x) return std::nullopt;
    numbers[i] = *x;
  }
  return numbers;
}

// One string, or a list of some; none is empty.
std::optional<std::vector<std::string>> strings_in(const Value& value) {
  const Array* list = std::get_if<Array>(&value.data);
  std::vector<std::string> strings;
  for (const Value& element : list != nullptr ? std::span<const Value>(*list) : std::span(&value, 1)) {
    const std::string* text = element.string();
    if (text == nullptr || text->empty()) return std::nullopt;
    strings.push_back(*text);
  }
  return strings;
}

std::optional<std::vector<std::string>> read_strings(const Value& value, const Place& place) {
  std::optional<std::vector<std::string>> strings = strings_in(value);
  if (!strings) expected("a list of strings, none of them empty, or one string", value, place);
  return strings;
}

std::optional<std::vector<std::string>> read_folders(const Value& value, const Place& place) {
  std::optional<std::vector<std::string>> folders = strings_in(value);
  if (!folders || folders->empty()) {
    expected("the path of a folder, or a list of such, none of them empty", value, place);
    return std::nullopt;
  }
  for (std::size_t i = 0; i < folders->size(); ++i) {
    const std::size_t first = position_of_folder(*folders, (*folders)[i]);
    if (first == i) continue;
    const std::string& one = (*folders)[first];
    const std::string& other = (*folders)[i];
    place.problems.error(place.path, place.line,
                         one == other ? fmt::format("\"{}\" is there twice; name each folder once", one)
                                      : fmt::format("\"{}\" and \"{}\" are the same folder; name each once", one, other));
    return std::nullopt;
  }
  return folders;
}

// The index of the word that `value` spells in any case.
std::optional<std::size_t> read_word(std::span<const std::string_view> words, const Value& value, const Place& place) {
  const std::string* text = value.string();
  for (std::size_t i = 0; text != nullptr && i < words.size(); ++i) {
    if (!words[i].empty() && lower(*text) == lower(words[i])) return i;
  }
  std::vector<std::string_view> named(words.begin(), words.end());
  std::erase(named, std::string_view());
  place.problems.error(place.path, place.line,
                       fmt::format("{} is not supported{}; allowed: {}", describe(value),
                                   text != nullptr ? did_you_mean(*text, named) : "", fmt::join(named, ", ")));
  return std::nullopt;
}

// Assigns when something was read.
template <class Target, class Source>
void store(Target& target, const std::optional<Source>& source) {
  if (source) target = *source;
}

struct Reading {
  const Range& range;
  const Value& value;
  const Place& place;

  void operator()(bool* slot) const { store(*slot, read_boolean(value, place)); }
  void operator()(std::optional<bool>* slot) const { store(*slot, read_boolean(value, place)); }
  void operator()(int* slot) const {
    if (const auto x = read_integer(range, value, place)) *slot = static_cast<int>(*x);
  }
  void operator()(std::int64_t* slot) const { store(*slot, read_integer(range, value, place)); }
  void operator()(std::optional<std::int64_t>* slot) const { store(*slot, read_integer(range, value, place)); }
  void operator()(double* slot) const { store(*slot, read_finite(range, value, place)); }
  void operator()(std::optional<double>* slot) const { store(*slot, read_finite(range, value, place)); }
  void operator()(std::string* slot) const {
    if (value.string() == nullptr) return expected("a string", value, place);
    *slot = *value.string();
  }
  void operator()(const Bytes& slot) const { store(*slot.bytes, read_bytes(value, place)); }
  void operator()(const Elements& slot) const { store(*slot.elements, read_elements(range, value, place)); }
  void operator()(const Folders& slot) const { store(*slot.folders, read_folders(value, place)); }
  void operator()(const Numbers& slot) const { store(*slot.numbers, read_numbers(range, value, place)); }
  void operator()(const Strings& slot) const { store(*slot.strings, read_strings(value, place)); }
  void operator()(const Word& slot) const {
    if (const auto i = read_word(slot.words, value, place)) *slot.word = slot.words[*i];
  }
  void operator()(const OptionalWord& slot) const {
    if (const auto i = read_word(slot.words, value, place)) *slot.word = slot.words[*i];
  }
  void operator()(const Choice& slot) const {
    if (const auto i = read_word(slot.words, value, place)) *slot.index = static_cast<std::uint8_t>(*i);
  }
};

struct Writing {
  template <class T>
  Value operator()(T* slot) const {
    return {*slot};
  }
  template <class T>
  Value operator()(std::optional<T>* slot) const {
    return *slot ? Value{**slot} : Value{};
  }
  Value operator()(int* slot) const { return {std::int64_t{*slot}}; }
  Value operator()(const Bytes& slot) const { return (*this)(slot.bytes); }
  Value operator()(const Elements& slot) const { return (*this)(slot.elements); }
  Value operator()(const Folders& slot) const {
    if (slot.folders->empty()) return {};
    return slot.folders->size() == 1 ? Value{slot.folders->front()} : (*this)(Strings{slot.folders});
  }
  Value operator()(const Numbers& slot) const {
    if (!*slot.numbers) return {};
    Array list;
    for (const double x : **slot.numbers) list.emplace_back().data = x;
    return {std::move(list)};
  }
  Value operator()(const Strings& slot) const {
    Array list;
    for (const std::string& text : *slot.strings) list.emplace_back().data = text;
    return {std::move(list)};
  }
  Value operator()(const Word& slot) const { return {*slot.word}; }
  Value operator()(const OptionalWord& slot) const { return (*this)(slot.word); }
  Value operator()(const Choice& slot) const {
    const std::string_view word = slot.words[*slot.index];
    return word.empty() ? Value{} : Value{std::string(word)};
  }
};

}  // namespace

std::optional<bool> read_boolean(const Value& value, const Place& place) {
  if (const bool* boolean = std::get_if<bool>(&value.data)) return *boolean;
  if (const std::string* text = value.string()) {
    const std::string word = lower(*text);
    if (word == "true" || word == "false") {
      place.problems.warning(place.path, place.line, fmt::format("{} taken as {}; JSON writes it without quotes, in "
                                                                 "lower case", describe(value), word));
      return word == "true";
    }
  }
  expected("true or false", value, place);
  return std::nullopt;
}

std::optional<double> read_number(const Value& value, const Place& place) {
  if (const std::int64_t* integer = std::get_if<std::int64_t>(&value.data)) return static_cast<double>(*integer);
  if (const double* number = std::get_if<double>(&value.data)) return *number;
  if (const std::string* text = value.string()) {
    const std::optional<double> number = number_in(*text);
    if (number && !std::isnan(*number)) {
      if (std::isfinite(*number)) {
        place.problems.warning(place.path, place.line, fmt::format("{} taken as the number {}; JSON writes numbers "
                                                                   "without quotes", describe(value), *number));
      }
      return number;
    }
  }
  expected("a number", value, place);
  return std::nullopt;
}

void read_field(const Field& field, const Range& range, const Value& value, const Place& place) {
  std::visit(Reading{range, value, place}, field);
}

Value write_field(const Field& field) { return std::visit(Writing{}, field); }

}  // namespace spillway::config
