#include "comm/start_markers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <fstream>
#include <system_error>

namespace spillway::comm {

namespace fs = std::filesystem;

StartMarkers::StartMarkers(const Launch& launch, const fs::path& temporary) : launch_(launch) {
  if (launch.job.empty()) return;
  std::string job = launch.job;
  for (char& c : job)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  // All ranks of a machine find the same of these writable.
  for (const fs::path& parent : {fs::path(launch.folder), temporary}) {
    if (parent.empty()) continue;
    folder_ = parent / fmt::format("spillway-start-{}-{}", getuid(), job);
    std::error_code error;
    fs::create_directory(folder_, error);
    std::ofstream mark(mark_of(launch.local_rank));
    if (mark << getpid() << std::flush) return;
  }
  folder_.clear();
}

void StartMarkers::remove() {
  if (folder_.empty()) return;
  std::error_code ignored;
  fs::remove(mark_of(launch_.local_rank), ignored);
  fs::remove(folder_, ignored);  // fails while it holds the marks of others
}

std::vector<int> StartMarkers::missing_local_ranks() const {
  std::vector<int> missing;
  if (folder_.empty()) return missing;
  for (int r = 0; r < launch_.local_size; ++r) {
    pid_t pid = 0;
    std::ifstream(mark_of(r)) >> pid;
    // A mark outlives a process that was killed.
    if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH)) missing.push_back(r);
  }
  return missing;
}

std::string StartMarkers::explain(double waited_s, const std::string& host) const {
  std::string text = fmt::format("[comm] rank {}{} (host {}, pid {}) waited {:g} s for the other ranks to start: ", launch_.rank,
                                 launch_.size > 0 ? fmt::format(" of {}", launch_.size) : "", host, getpid(), waited_s);
  const std::vector<int> missing = missing_local_ranks();
  const bool one_machine = launch_.local_size == launch_.size;
  if (!missing.empty())
    text += fmt::format("{}rank{} {} of this machine {} not started", one_machine ? "" : "local ", missing.size() == 1 ? "" : "s",
                        fmt::join(missing, ", "), missing.size() == 1 ? "has" : "have");
  else if (launch_.local_size > 0 && !one_machine && !folder_.empty())
    text += fmt::format("all {} of this machine have, one of another has not", launch_.local_size);
  else text += "at least one has not";
  return text + "; see what its launcher says, or give it longer with the communication timeout";
}

fs::path StartMarkers::mark_of(int local_rank) const { return folder_ / fmt::format("local-rank-{}", local_rank); }

}  // namespace spillway::comm
