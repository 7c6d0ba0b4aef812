// One line per message on standard error. The level comes from SPILLWAY_LOG, else DS_LOG_LEVEL
// (debug, info, warning, error); default info.
#pragma once

#include <string_view>

namespace spillway {

enum class LogLevel { debug, info, warning, error };

void log(LogLevel level, std::string_view message);
bool log_enabled(LogLevel level);

// From now on this process is one of several: what they all have to say is said by another, so only warnings and errors
// are printed, with the rank in front.
void log_for_rank(int rank);

// From now on everything logged here goes to `log`, unfiltered. For a shared module, whose copy of this code says what it
// has to say through its program's. Before threads are started.
void log_through(void (*log)(LogLevel, std::string_view));

inline void log_info(std::string_view message) { log(LogLevel::info, message); }
inline void log_warning(std::string_view message) { log(LogLevel::warning, message); }

}  // namespace spillway
