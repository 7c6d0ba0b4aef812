// What io_engine.cpp's list knows of each engine. A new engine is one file that defines an entry, and one
// line of that list.
#pragma once

#include <memory>
#include <string_view>

#include "spillway/io_engine.h"

namespace spillway {

struct IoEngineEntry {
  std::string_view name;
  std::string_view package;                       // Debian package to install if not built in
  bool polls;                                     // knows IoEngineOptions::submission_polling and completion_polling
  std::unique_ptr<IoEngine> (*make)(const IoEngineOptions&);  // null: not built in. Throws IoError
};

extern const IoEngineEntry io_uring_entry;
extern const IoEngineEntry libaio_entry;
extern const IoEngineEntry threads_entry;

}  // namespace spillway
