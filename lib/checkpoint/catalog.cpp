#include "checkpoint/catalog.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/log.h"
#include "checkpoint/folders.h"
#include "checkpoint/reader.h"
#include "spillway/error.h"

namespace spillway::checkpoint {

namespace {

struct Named {
  std::int64_t step;
  std::string path;
};

// By name alone, the highest step first.
std::vector<Named> candidates(const std::string& root) {
  std::vector<Named> found;
  for (const std::string& name : names_in(root)) {
    if (const auto step = step_of(name)) found.push_back({*step, root + "/" + name});
  }
  std::ranges::sort(found, std::ranges::greater(), &Named::step);
  return found;
}

}  // namespace

std::string flaw_of(const std::string& path) {
  try {
    Reader{path};
    return {};
  } catch (const IoError& error) {
    return error.what();
  }
}

std::uint64_t state_hash_at(const std::string& path) { return Reader(path).manifest().state_hash; }

Found find_newest(const std::string& root) {
  Found found;
  for (const Named& candidate : candidates(root)) {
    const std::string flaw = flaw_of(candidate.path);
    if (flaw.empty()) {
      found.folder = candidate.path;
      break;
    }
    found.notes.push_back(fmt::format("{} is passed over: {}", candidate.path, flaw));
  }
  for (const std::string& name : names_in(root)) {
    const auto visible = name_behind(name);
    if (visible && step_of(*visible)) found.notes.push_back(fmt::format("{}/{} is passed over: it was not finished", root, name));
  }
  return found;
}

void prune(const std::string& root, int keep, const std::string& written) {
  if (keep <= 0) return;
  int kept = 1;
  for (const Named& candidate : candidates(root)) {
    if (candidate.path == written || !flaw_of(candidate.path).empty()) continue;
    if (kept < keep) {
      ++kept;
      continue;
    }
    try {
      remove_folder(candidate.path);
    } catch (const IoError& error) {
      log_warning(fmt::format("{} (an old checkpoint stays)", error.what()));
    }
  }
}

}  // namespace spillway::checkpoint
