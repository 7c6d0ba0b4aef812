// A configuration from its text, and what is said of one that is refused.
#pragma once

#include <string>

#include "spillway/config.h"
#include "spillway/error.h"

namespace spillway::testing {

inline Config parse(const std::string& text, const ConfigContext& context = {}) { return parse_config(text, "ds.json", context); }

// "no error" if it is taken.
inline std::string error_of(const std::string& text, const ConfigContext& context = {}) {
  try {
    parse(text, context);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace spillway::testing
