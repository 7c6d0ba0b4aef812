// Which parameters are not trained, from the patterns of a configuration.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace spillway {

// By name: does any of `patterns` match it? In a pattern * stands for any characters, none included, and ? for one;
// the rest is literal, and the whole name has to match. Throws ConfigError for a pattern that matches no name, with
// the name that comes closest. Pure.
std::vector<bool> match_frozen(std::span<const std::string> patterns, std::span<const std::string> names);

}  // namespace spillway
