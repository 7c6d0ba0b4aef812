#include "base/text.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

namespace spillway {

std::string human_bytes(std::int64_t bytes) {
  static constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < units.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string human_count(std::int64_t count) {
  if (count < 1000) return fmt::format("{}", count);
  if (count < 1'000'000) return fmt::format("{:.1f} K", static_cast<double>(count) / 1e3);
  if (count < 1'000'000'000) return fmt::format("{:.1f} M", static_cast<double>(count) / 1e6);
  return fmt::format("{:.2f} B", static_cast<double>(count) / 1e9);
}

namespace {

// Optimal string alignment distance (Damerau 1964, restricted to adjacent transpositions).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string closest_match(std::string_view name, std::span<const std::string_view> candidates) {
  std::size_t best = std::max<std::size_t>(2, name.size() / 3) + 1;
  std::string_view match;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best) {
      best = distance;
      match = candidate;
    }
  }
  return std::string(match);
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  const std::string match = closest_match(name, candidates);
  return match.empty() ? std::string() : fmt::format(" (did you mean \"{}\"?)", match);
}

}  // namespace spillway
