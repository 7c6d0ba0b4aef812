#include "model/frozen.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "spillway/error.h"

namespace spillway {

namespace {

// Single characters to insert, remove or replace in `pattern` until it matches `name`; 0: it does.
std::size_t distance(std::string_view pattern, std::string_view name) {
  // row[j]: from the part of the pattern read so far to the first j characters of the name.
  std::vector<std::size_t> row(name.size() + 1), next(row.size());
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (const char c : pattern) {
    const std::size_t step = c == '*' ? 0 : 1;  // what passing over c costs
    next[0] = row[0] + step;
    for (std::size_t j = 1; j < row.size(); ++j) {
      const std::size_t insert = next[j - 1] + step;
      const std::size_t replace = row[j - 1] + (c == '*' || c == '?' || c == name[j - 1] ? 0 : 1);
      next[j] = std::min({row[j] + step, insert, replace});
    }
    row.swap(next);
  }
  return row.back();
}

}  // namespace

std::vector<bool> match_frozen(std::span<const std::string> patterns, std::span<const std::string> names) {
  std::vector<bool> frozen(names.size(), false);
  for (const std::string& pattern : patterns) {
    std::size_t least = std::numeric_limits<std::size_t>::max(), closest = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::size_t d = distance(pattern, names[i]);
      if (d == 0) frozen[i] = true;
      if (d < least) {
        least = d;
        closest = i;
      }
    }
    if (least == 0) continue;
    throw ConfigError(fmt::format("spillway.frozen: \"{}\" matches no parameter of the model{}; * stands for any characters, ? for "
                                  "one", pattern, names.empty() ? "" : fmt::format("; the closest is \"{}\"", names[closest])));
  }
  return frozen;
}

}  // namespace spillway
