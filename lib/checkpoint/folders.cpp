#include "checkpoint/folders.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "spillway/error.h"

namespace spillway::checkpoint {

namespace {

constexpr std::string_view kStep = "step-";
constexpr std::string_view kPartial = ".partial-";
constexpr std::string_view kRemoved = ".removed-";
constexpr std::size_t kSuffixDigits = 16;  // of unique_suffix()
constexpr std::size_t kStepDigits = 8;     // at least

std::string hidden_path(const std::string& path, std::string_view kind) {
  return fmt::format("{}/.{}{}{}", parent_of(path), name_in_parent(path), kind, unique_suffix());
}

enum class Lock : std::uint8_t { taken, held_by_another, unknown };

// Opens a folder and locks it until the descriptor is closed, which also a death does.
Lock lock_folder(const std::string& path, Descriptor& folder) {
  folder = Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return Lock::unknown;
  if (::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) return Lock::taken;
  return errno == EWOULDBLOCK ? Lock::held_by_another : Lock::unknown;  // unknown: a file system without such locks
}

bool is_still_at(const Descriptor& folder, const std::string& path) {
  struct stat open{}, named{};
  return ::fstat(folder.get(), &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

// What is deleted already is no error: another run may do the same.
int remove_tree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error == std::errc::no_such_file_or_directory ? 0 : error.value();
}

}  // namespace

std::string folder_name(std::int64_t step) { return fmt::format("{}{:0{}}", kStep, step, kStepDigits); }

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return {};
  const std::string_view digits = name.substr(kStep.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  // Only the name that we would give: not "step-5", nor "step--0000005".
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0 || folder_name(step) != name) return {};
  return step;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error == std::errc::no_such_file_or_directory) return {};
  if (error) throw_system_error("list", folder, error.value());
  std::ranges::sort(names);
  return names;
}

std::optional<std::string> name_behind(std::string_view hidden) {
  if (!hidden.starts_with('.')) return {};
  for (const std::string_view kind : {kPartial, kRemoved}) {
    const std::size_t at = hidden.rfind(kind);
    if (at == std::string_view::npos || at < 2) continue;
    const std::string_view suffix = hidden.substr(at + kind.size());
    if (suffix.size() == kSuffixDigits && suffix.find_first_not_of("0123456789abcdef") == std::string_view::npos) {
      return std::string(hidden.substr(1, at - 1));
    }
  }
  return {};
}

TemporaryFolder::TemporaryFolder(const std::string& path) : path_(path) {
  while (true) {
    hidden_ = hidden_path(path, kPartial);
    if (::mkdir(hidden_.c_str(), 0777) != 0) throw_system_error("make the folder", hidden_, errno);
    // Between the two calls another run may take the folder for a dead one's. It locks before it removes, so it either
    // has the lock now, or has removed the folder.
    const Lock lock = lock_folder(hidden_, lock_);
    if (!lock_ && errno != ENOENT) throw_system_error("open the folder", hidden_, errno);
    if (lock == Lock::unknown && lock_) return;
    if (lock == Lock::taken && is_still_at(lock_, hidden_)) return;
  }
}

TemporaryFolder::~TemporaryFolder() {
  if (!published_) remove_tree(hidden_);
}

bool TemporaryFolder::publish(bool replace) {
  sync_folder(hidden_);
  if (::rename(hidden_.c_str(), path_.c_str()) == 0) {
    published_ = true;
  } else {
    const bool occupied = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR;
    if (!occupied) throw_system_error("rename the finished folder to", path_, errno);
    if (!replace) return false;
    if (::renameat2(AT_FDCWD, hidden_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
      throw_system_error("swap the finished folder with", path_, errno);
    }
    // The old one now has the hidden name, and goes with this object.
  }
  sync_folder(parent_of(path_));
  return true;
}

void remove_folder(const std::string& path) {
  const std::string hidden = hidden_path(path, kRemoved);
  if (::rename(path.c_str(), hidden.c_str()) != 0) throw_system_error("rename, in order to delete it,", path, errno);
  sync_folder(parent_of(path));
  if (const int error = remove_tree(hidden)) throw_system_error("delete", hidden, error);
}

void remove_stale(const std::string& folder, const std::function<bool(std::string_view)>& ours) {
  for (const std::string& name : names_in(folder)) {
    const std::optional<std::string> visible = name_behind(name);
    if (!visible || !ours(*visible)) continue;
    const std::string path = folder + "/" + name;
    Descriptor lock;
    // Also not where the file system has no locks, or where it is a file or a link: then nobody knows whose it is.
    if (lock_folder(path, lock) != Lock::taken) continue;
    if (const int error = remove_tree(path)) {
      log_warning(fmt::format("[checkpoint] {} was left by a run that died and cannot be removed: {}", path,
                              std::generic_category().message(error)));
    }
  }
}

}  // namespace spillway::checkpoint
