#include "config/problems.h"

#include <fmt/format.h>

#include "spillway/error.h"

namespace spillway::config {

namespace {

std::string located(const std::string& file, std::string_view path, int line, std::string_view text) {
  return line > 0 ? fmt::format("{}:{}: {}: {}", file, line, path, text) : fmt::format("{}: {}: {}", file, path, text);
}

}  // namespace

void Problems::error(std::string_view path, int line, std::string_view text) {
  errors_.push_back(located(file_, path, line, text));
}

void Problems::warning(std::string_view path, int line, std::string_view text) {
  warnings_.push_back(located(file_, path, line, text));
}

void Problems::throw_errors() const {
  if (errors_.empty()) return;
  if (errors_.size() == 1) throw ConfigError(errors_.front());
  throw ConfigError(fmt::format("{} errors in {}:\n  {}", errors_.size(), file_, fmt::join(errors_, "\n  ")));
}

}  // namespace spillway::config
