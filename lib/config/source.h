// A configuration file as text, or a ConfigError that says why it is none.
#pragma once

#include <string>
#include <string_view>

namespace spillway::config {

// `kind` ("configuration", "model") is for the error text. Throws ConfigError naming the file when it is missing, unreadable, a folder, empty, not text or absurdly large.
std::string read_text(const std::string& file, std::string_view kind);

}  // namespace spillway::config
