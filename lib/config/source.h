// A configuration file as text, or a ConfigError that says why it is none.
#pragma once

#include <string>

namespace spillway::config {

// Throws ConfigError naming the file when it is missing, unreadable, a folder, empty, not text or absurdly large.
std::string read_text(const std::string& file);

}  // namespace spillway::config
