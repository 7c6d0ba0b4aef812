// Words for people: sizes, durations, and the closest match to a misspelt name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace spillway {

// "512 B", "41.2 KiB", "3.0 GiB".
std::string human_bytes(std::int64_t bytes);

// "10.0 M", "1.56 B".
std::string human_count(std::int64_t count);

// The candidate with the smallest edit distance (adjacent swaps count once), or empty if none is close
// enough to be meant.
std::string closest_match(std::string_view name, std::span<const std::string_view> candidates);

// " (did you mean \"x\"?)", or empty.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace spillway
