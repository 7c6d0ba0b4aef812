// Files that no death of the process leaves behind.
#pragma once

#include <string>

namespace spillway {

// Opens a new file in `folder`, readable and writable for this user only, that has no name: its space is given back when the
// last descriptor is closed, whatever becomes of the process. Where the file system has no such files, one is made and its
// name removed at once; a kill between those two calls leaves an empty file `.spillway-XXXXXX`. Returns the descriptor,
// the caller's, or a negative errno.
int open_unnamed_file(const std::string& folder);

}  // namespace spillway
