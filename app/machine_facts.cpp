#include "app/machine_facts.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "base/affinity.h"
#include "memory/process_memory.h"
#include "spillway/error.h"
#include "spillway/io_engine.h"
#include "spillway/optimizer.h"
#include "spillway/swap_store.h"

namespace spillway::app {

namespace {

std::string first_line(const std::filesystem::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

// "model name : X" of /proc/cpuinfo; Arm kernels do not say.
std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

std::vector<NumaNode> numa_nodes(const std::vector<int>& cores) {
  const std::vector<int> node_of = node_of_cores();
  const auto node_of_core = [&](int core) { return static_cast<std::size_t>(core) < node_of.size() ? node_of[static_cast<std::size_t>(core)] : 0; };
  std::set<int> numbers(node_of.begin(), node_of.end());
  if (numbers.empty()) numbers.insert(0);
  std::vector<NumaNode> nodes;
  for (const int number : numbers) {
    NumaNode node{number, {}, {}};
    std::copy_if(cores.begin(), cores.end(), std::back_inserter(node.cores), [&](int core) { return node_of_core(core) == number; });
    std::istringstream distances(first_line(fmt::format("/sys/devices/system/node/node{}/distance", number)));
    for (int distance = 0; distances >> distance;) node.distances.push_back(distance);
    nodes.push_back(node);
  }
  return nodes;
}

// "always [madvise] never" -> "madvise"
std::string huge_pages() {
  const std::string line = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const auto open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos ? "" : line.substr(open + 1, close - open - 1);
}

std::int64_t locked_limit() {
  rlimit limit{};
  // With this capability the limit binds nobody; root has it outside containers.
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || ::geteuid() == 0) return -1;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

// The mount that holds a folder: the one of its device number. Fields as in proc(5), /proc/self/mountinfo.
void find_mount(const std::string& path, DiskFacts& facts) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return;
  const std::string number = fmt::format("{}:{}", major(status.st_dev), minor(status.st_dev));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string id, parent, device;
    fields >> id >> parent >> device;
    const auto dash = line.find(" - ");
    if (device != number || dash == std::string::npos) continue;
    std::istringstream rest(line.substr(dash + 3));
    rest >> facts.file_system >> facts.device;
    break;
  }
  std::error_code none;
  const std::filesystem::path block = std::filesystem::canonical(fmt::format("/sys/dev/block/{}", number), none);
  // A partition's controller is above its disk.
  for (std::filesystem::path at = block; at.has_relative_path() && at != at.parent_path(); at = at.parent_path()) {
    const std::string node = first_line(at / "numa_node");
    if (node.empty()) continue;
    std::istringstream(node) >> facts.numa_node;
    break;
  }
}

}  // namespace

HostFacts host_facts() {
  HostFacts facts;
  facts.cpu = cpu_name();
  facts.cores = allowed_cores();
  facts.nodes = numa_nodes(facts.cores);
  facts.total_bytes = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  facts.available_bytes = available_memory();
  facts.locked_limit_bytes = locked_limit();
  facts.huge_pages = huge_pages();
  facts.instruction_set = active_isa();
  facts.io_engine = usable_io_engine();
  for (const std::string_view name : io_engine_names()) facts.io_engines.emplace_back(name);
  return facts;
}

DiskFacts disk_facts(const std::string& path) {
  DiskFacts facts;
  facts.path = path;
  std::error_code none;
  if (!std::filesystem::is_directory(path, none)) {
    facts.error = "is no folder; make it, or name another";
  } else if (::access(path.c_str(), W_OK | X_OK) != 0) {
    facts.error = fmt::format("{}; a run writes its swap file there", std::strerror(errno));
  } else {
    find_mount(path, facts);
    facts.free_bytes = free_bytes(path);
  }
  return facts;
}

}  // namespace spillway::app
