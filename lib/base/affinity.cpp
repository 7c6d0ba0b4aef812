#include "base/affinity.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include <fmt/format.h>

#include "base/core_share.h"

namespace spillway {

namespace {

// A mask for cores 0 .. size-1, however many a machine has.
class CpuSet {
 public:
  explicit CpuSet(int size) : size_(size), set_(CPU_ALLOC(static_cast<std::size_t>(size))) { CPU_ZERO_S(bytes(), set_.get()); }

  std::size_t bytes() const { return CPU_ALLOC_SIZE(static_cast<std::size_t>(size_)); }
  cpu_set_t* get() { return set_.get(); }
  void add(int core) { CPU_SET_S(static_cast<std::size_t>(core), bytes(), set_.get()); }
  bool contains(int core) const { return CPU_ISSET_S(static_cast<std::size_t>(core), bytes(), set_.get()); }

 private:
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };

  int size_;
  std::unique_ptr<cpu_set_t, Free> set_;
};

}  // namespace

std::vector<int> allowed_cores() {
  // The kernel answers EINVAL until the set is as large as its own.
  for (int size = 1024; size <= 1 << 20; size *= 2) {
    CpuSet set(size);
    if (::sched_getaffinity(0, set.bytes(), set.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> cores;
    for (int core = 0; core < size; ++core) {
      if (set.contains(core)) cores.push_back(core);
    }
    return cores;
  }
  return {};
}

std::vector<int> node_of_cores(const std::string& folder) {
  std::vector<int> nodes;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    const std::vector<int> number = parse_core_list(name.starts_with("node") ? name.substr(4) : "");
    if (number.size() != 1) continue;  // possible, online, ...
    std::string cores;
    std::getline(std::ifstream(entry.path() / "cpulist"), cores);
    for (const int core : parse_core_list(cores)) {
      const auto index = static_cast<std::size_t>(core);
      if (nodes.size() <= index) nodes.resize(index + 1, 0);
      nodes[index] = number.front();
    }
  }
  return nodes;
}

Binding bind_to_cores(std::span<const int> cores) {
  std::string note;
  if (!cores.empty()) {
    CpuSet set(std::max(1024, *std::ranges::max_element(cores) + 1));
    for (const int core : cores) set.add(core);
    if (::sched_setaffinity(0, set.bytes(), set.get()) != 0) {
      note = fmt::format("cannot bind to cores {}: {}; ranks of this machine may compete for cores", core_list(cores),
                         std::generic_category().message(errno));
    }
  }
  const std::vector<int> allowed = allowed_cores();
  // The kernel leaves out cores that a container's cpuset does not hold, and calls that success.
  if (note.empty() && !cores.empty() && !std::ranges::equal(allowed, cores)) {
    note = fmt::format("asked for cores {}, and may use {} only", core_list(cores), core_list(allowed));
  }
  return {std::max(1, static_cast<int>(allowed.size())), note};
}

}  // namespace spillway
