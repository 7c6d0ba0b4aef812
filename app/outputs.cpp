#include "app/outputs.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include <fmt/format.h>

#include "spillway/error.h"

namespace spillway::app {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const char* option, const std::string& path, const std::string& reason) {
  throw IoError(fmt::format("[out] write '{}': {}; choose another --{}", path, reason, option));
}

}  // namespace

void check_writable(const char* option, const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  if (fs::is_directory(path, error)) refuse(option, path, "is a folder; name a file");
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (!fs::exists(folder, error)) refuse(option, path, fmt::format("the folder '{}' does not exist", folder));
  // What is there already and is no plain file (/dev/null, a pipe) is written in place.
  const bool in_place = fs::exists(path, error) && !fs::is_regular_file(path, error);
  if (access(in_place ? path.c_str() : folder.c_str(), W_OK) != 0) {
    refuse(option, path, std::error_code(errno, std::generic_category()).message());
  }
}

Outputs::Outputs(TrainOptions& options) {
  try {
    name_files(options);
    check_writable("metrics", options.metrics);
    check_writable("trace", options.trace);
    check_writable("summary", options.summary);
    check_writable("curve", options.curve);
  } catch (...) {
    remove_made();
    throw;
  }
}

void Outputs::name_files(TrainOptions& options) {
  if (options.out.empty()) return;
  make_folder(options.out);
  lock_ = FolderLock(options.out);
  const auto fill = [&](std::string& path, const char* name) {
    if (path.empty()) path = (fs::path(options.out) / name).string();
  };
  fill(options.metrics, "metrics.jsonl");
  fill(options.trace, "trace.json");
  fill(options.summary, "summary.json");
  fill(options.curve, "loss.svg");
}

Outputs::~Outputs() { remove_made(); }

void Outputs::make_folder(const std::string& folder) {
  std::error_code error;
  for (fs::path path = fs::absolute(folder).lexically_normal(); !fs::exists(path, error) && path.has_relative_path(); path = path.parent_path()) {
    if (path.has_filename()) made_.push_back(path.string());
  }
  fs::create_directories(folder, error);
  if (!error && !fs::is_directory(folder)) error = std::make_error_code(std::errc::not_a_directory);
  if (error) throw IoError(fmt::format("[out] make folder '{}': {}; choose another --out", folder, error.message()));
}

// A folder that something else has put a file into stays.
void Outputs::remove_made() {
  for (const std::string& folder : made_) rmdir(folder.c_str());
  made_.clear();
}

}  // namespace spillway::app
