// Sizes as people write them.
#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "spillway/config.h"
#include "spillway/error.h"

namespace spillway {

namespace {

struct Unit {
  std::string_view name;  // in lower case
  double bytes;
};

// A bare K, M, G is left out: half of the world means 1000 by it.
constexpr Unit kUnits[] = {
    {"", 1},        {"b", 1},        {"kb", 1e3},     {"mb", 1e6},      {"gb", 1e9},     {"tb", 1e12},
    {"ki", 0x1p10}, {"kib", 0x1p10}, {"mi", 0x1p20}, {"mib", 0x1p20}, {"gi", 0x1p30}, {"gib", 0x1p30},
    {"ti", 0x1p40}, {"tib", 0x1p40},
};

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

}  // namespace

std::int64_t parse_bytes(const std::string& text, const std::string& what) {
  const std::string_view trimmed = trim(text);
  double number = 0.0;
  const auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), number);
  std::string unit(trim(trimmed.substr(static_cast<std::size_t>(end - trimmed.data()))));
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (error == std::errc()) {
    for (const Unit& known : kUnits) {
      const double bytes = std::floor(number * known.bytes);
      if (known.name == unit && bytes >= 0.0 && bytes < 0x1p63) return static_cast<std::int64_t>(bytes);
    }
  }
  throw ConfigError(fmt::format("{}: \"{}\" is not a size; allowed: a number of bytes from 0 to 2^63 - 1, or a number "
                                "with a unit: KiB, MiB, GiB, TiB (1024) or KB, MB, GB, TB (1000)", what, text));
}

}  // namespace spillway
