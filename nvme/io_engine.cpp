// The list of engines, best first, and the choice among them.
#include "spillway/io_engine.h"

#include <array>
#include <atomic>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/log.h"
#include "base/text.h"
#include "io_engine_entry.h"
#include "spillway/error.h"

namespace spillway {

namespace {

constexpr int kMaxDepth = 4096;

constexpr std::array kEntries = {&io_uring_entry, &libaio_entry, &threads_entry};

// Says once per process that an engine goes without the polling it was asked for.
void warn_of_polling(std::string_view engine) {
  static std::atomic_flag warned;
  if (warned.test_and_set()) return;
  log_warning(fmt::format("[nvme] I/O engine {} does not poll: submission_polling and completion_polling are io_uring's; going without", engine));
}

std::unique_ptr<IoEngine> make_of(const IoEngineEntry& entry, const IoEngineOptions& options) {
  auto engine = entry.make(options);
  if (!entry.polls && (options.submission_polling || options.completion_polling)) warn_of_polling(entry.name);
  return engine;
}

std::unique_ptr<IoEngine> make_named(const IoEngineOptions& options) {
  for (const IoEngineEntry* entry : kEntries) {
    if (entry->name != options.name) continue;
    if (entry->make != nullptr) return make_of(*entry, options);
    throw IoError(fmt::format(
        "[nvme] make I/O engine {}: not built in (built in: {}); install {} and configure again, or use \"auto\"",
        entry->name, fmt::join(io_engine_names(), ", "), entry->package));
  }
  throw IoError(fmt::format("[nvme] make I/O engine \"{}\": unknown{}; allowed: auto, {}", options.name,
                            did_you_mean(options.name, io_engine_names()), fmt::join(io_engine_names(), ", ")));
}

// Says once per process which engines "auto" passed over, why, and what that costs.
void warn_of_fallback(std::string_view taken, const std::string& reasons) {
  static std::atomic_flag warned;
  if (reasons.empty() || warned.test_and_set()) return;
  log_warning(fmt::format("[nvme] using I/O engine {}, which costs more processor time per request: {}", taken,
                          reasons));
}

std::unique_ptr<IoEngine> make_first_usable(const IoEngineOptions& options, std::string& reasons) {
  for (const IoEngineEntry* entry : kEntries) {
    if (entry->make == nullptr) continue;
    try {
      return make_of(*entry, options);
    } catch (const IoError& error) {
      if (!reasons.empty()) reasons += "; ";
      reasons += error.what();
    }
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<IoEngine> make_io_engine(const IoEngineOptions& options) {
  if (options.depth < 1 || options.depth > kMaxDepth) {
    throw IoError(
        fmt::format("[nvme] make I/O engine: depth {} is outside the allowed 1 to {}", options.depth, kMaxDepth));
  }
  if (options.name != "auto") return make_named(options);
  std::string reasons;
  auto engine = make_first_usable(options, reasons);
  if (engine == nullptr) throw IoError("[nvme] make I/O engine: none works here: " + reasons);
  warn_of_fallback(engine->name(), reasons);
  return engine;
}

std::span<const std::string_view> io_engine_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> built_in;
    for (const IoEngineEntry* entry : kEntries) {
      if (entry->make != nullptr) built_in.push_back(entry->name);
    }
    return built_in;
  }();
  return names;
}

std::string_view usable_io_engine() {
  for (const IoEngineEntry* entry : kEntries) {
    if (entry->make == nullptr) continue;
    try {
      entry->make({.name = std::string(entry->name), .depth = 1});
      return entry->name;
    } catch (const IoError&) {
      // The reason is told by make_io_engine() when the engine is asked for.
    }
  }
  return {};
}

}  // namespace spillway
