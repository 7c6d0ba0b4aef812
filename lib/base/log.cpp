#include "base/log.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace spillway {

namespace {

LogLevel level_from_environment() {
  for (const char* variable : {"SPILLWAY_LOG", "DS_LOG_LEVEL"}) {
    const char* text = std::getenv(variable);
    if (text == nullptr) continue;
    const std::string_view level = text;
    if (level == "debug" || level == "DEBUG") return LogLevel::debug;
    if (level == "info" || level == "INFO") return LogLevel::info;
    if (level == "warning" || level == "WARNING") return LogLevel::warning;
    if (level == "error" || level == "ERROR") return LogLevel::error;
  }
  return LogLevel::info;
}

int rank_of_process = -1;                              // set before threads start
void (*logs_here)(LogLevel, std::string_view) = nullptr;  // the same

LogLevel threshold() {
  static const LogLevel level = level_from_environment();
  return level;
}

}  // namespace

bool log_enabled(LogLevel level) { return level >= threshold() && (rank_of_process < 0 || level >= LogLevel::warning); }

void log_for_rank(int rank) { rank_of_process = rank; }

void log_through(void (*log)(LogLevel, std::string_view)) { logs_here = log; }

void log(LogLevel level, std::string_view message) {
  if (logs_here != nullptr) return logs_here(level, message);
  if (!log_enabled(level)) return;
  const char* prefix = level == LogLevel::warning ? "warning: " : level == LogLevel::error ? "error: " : "";
  std::string line = rank_of_process < 0 ? "" : "rank " + std::to_string(rank_of_process) + ": ";
  line += prefix;
  line += message;
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace spillway
