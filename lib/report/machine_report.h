// What a machine has for training, as `spillway doctor` shows it: words for people, and JSON for tools.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/device.h"

namespace spillway {

struct NumaNode {
  int node = 0;
  std::vector<int> cores;      // of those this process may use
  std::vector<int> distances;  // to each node, as the kernel has them: 10 is the node itself

  bool operator==(const NumaNode&) const = default;
};

struct HostFacts {
  std::string cpu;                        // model name
  std::vector<int> cores;                 // this process may use
  std::vector<NumaNode> nodes;            // one if the kernel shows none
  std::int64_t total_bytes = 0, available_bytes = 0;
  std::int64_t locked_limit_bytes = -1;   // RLIMIT_MEMLOCK; -1: none
  std::string huge_pages;                 // always, madvise, never; empty: the kernel has none
  std::string instruction_set;            // of the CPU optimizer
  double optimizer_bytes_per_s = 0.0;     // measured; 28 bytes a parameter
  std::string io_engine;                  // the first that works; empty: none does
  std::vector<std::string> io_engines;    // built in, best first
};

// A folder for the NVMe tier.
struct DiskFacts {
  std::string path;
  std::string file_system;                // "ext4"
  std::string device;                     // "/dev/nvme0n1p1", as mounted
  std::int64_t free_bytes = 0;
  int numa_node = -1;                     // of the disk's controller; -1: unknown
  double read_bytes_per_s = 0.0, write_bytes_per_s = 0.0, mixed_bytes_per_s = 0.0;  // measured
  double latency_s = 0.0;                 // of reading a page
  bool buffered = false;                  // no O_DIRECT: measured through the page cache
  std::string error;                      // why it cannot be used; empty: it can
};

struct MachineReport {
  std::string version;
  HostFacts host;
  std::string no_cuda;                    // why there is no CUDA device; empty: there is
  std::vector<CudaDeviceInfo> devices;
  std::vector<DiskFacts> disks;
};

std::string machine_text(const MachineReport& report);
std::string machine_json(const MachineReport& report);

// What to change on this machine, one sentence each; empty: nothing.
std::vector<std::string> advice(const MachineReport& report);

}  // namespace spillway
