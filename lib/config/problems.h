// What is wrong with a configuration, collected so that one run of the program shows all of it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway::config {

class Problems {
 public:
  explicit Problems(std::string file) : file_(std::move(file)) {}

  // `path` is the JSON path of the value at fault, `line` where its key stands (0: not in the file).
  void error(std::string_view path, int line, std::string_view text);
  void warning(std::string_view path, int line, std::string_view text);

  std::size_t error_count() const { return errors_.size(); }

  // Throws one ConfigError with every error so far; does nothing when there is none.
  void throw_errors() const;

  std::vector<std::string> take_warnings() { return std::move(warnings_); }

 private:
  std::string file_;
  std::vector<std::string> errors_;
  std::vector<std::string> warnings_;
};

}  // namespace spillway::config
