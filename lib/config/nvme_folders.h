// Whether two paths name one folder.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace spillway::config {

// The first of `folders` that is `folder` by whatever name (links, "..", a slash at the end); their number if none is.
// What does not exist yet is compared by its spelling.
std::size_t position_of_folder(std::span<const std::string> folders, const std::string& folder);

}  // namespace spillway::config
