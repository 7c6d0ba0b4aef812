#include "memory/process_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace spillway {

namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

// The value in bytes of a "Name:   123 kB" line.
std::int64_t field_of(const char* file, const std::string& name, std::int64_t otherwise) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name + ":", 0) != 0) continue;
    std::istringstream rest(line.substr(name.size() + 1));
    std::int64_t kib = 0;
    return rest >> kib ? kib * 1024 : otherwise;
  }
  return otherwise;
}

// A file holding one number; "max", an absent file and nonsense all mean no limit.
std::int64_t number_in(const std::string& file) {
  std::ifstream in(file);
  std::int64_t value = 0;
  return in >> value ? value : kUnknown;
}

// Memory left in this process's cgroup (version 2).
std::int64_t left_in_cgroup() {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    const std::string folder = "/sys/fs/cgroup" + line.substr(3);
    const std::int64_t limit = number_in(folder + "/memory.max"), used = number_in(folder + "/memory.current");
    if (limit == kUnknown || used == kUnknown) return kUnknown;
    return std::max<std::int64_t>(0, limit - used);
  }
  return kUnknown;
}

}  // namespace

std::int64_t resident_bytes() { return field_of("/proc/self/status", "VmRSS", 0); }
std::int64_t peak_resident_bytes() { return field_of("/proc/self/status", "VmHWM", 0); }

bool restart_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << 5 << std::flush;
  return file.good();
}

std::int64_t available_memory() { return std::min(field_of("/proc/meminfo", "MemAvailable", kUnknown), left_in_cgroup()); }

}  // namespace spillway
