#include "report/machine_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/core_share.h"
#include "base/text.h"

namespace spillway {

namespace {

// Below this a link is not what its slot could be: PCIe 3.0 with 16 lanes moves 12 GB/s.
constexpr double kSlowLink = 10e9;
// A ring of transfers needs about this much locked memory to be registered.
constexpr std::int64_t kEnoughLocked = std::int64_t{256} << 20;

std::string gb_per_s(double rate) { return fmt::format("{:.1f} GB/s", rate * 1e-9); }
std::string cuda_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string limit_text(std::int64_t bytes) { return bytes < 0 ? "unlimited" : human_bytes(bytes); }

std::string host_text(const HostFacts& host) {
  std::string text = fmt::format("cpu          {}; cores {}\n", host.cpu, core_list(host.cores));
  for (const NumaNode& node : host.nodes) {
    if (host.nodes.size() > 1) text += fmt::format("  node {:<6} cores {}; distances {}\n", node.node, core_list(node.cores), fmt::join(node.distances, " "));
  }
  text += fmt::format("memory       {}, {} available; huge pages: {}; may lock {}\n", human_bytes(host.total_bytes), human_bytes(host.available_bytes),
                      host.huge_pages.empty() ? "none" : host.huge_pages, limit_text(host.locked_limit_bytes));
  text += fmt::format("optimizer    {}, {} of traffic\n", host.instruction_set, gb_per_s(host.optimizer_bytes_per_s));
  return text + fmt::format("I/O engine   {} (built in: {})\n", host.io_engine.empty() ? "none works here" : host.io_engine, fmt::join(host.io_engines, ", "));
}

std::string distance_text(const CudaDeviceInfo& device, const std::vector<NumaNode>& nodes) {
  if (device.numa_node < 0) return "";
  std::string text = fmt::format(", node {}", device.numa_node);
  for (const NumaNode& node : nodes) {
    if (node.cores.empty() || static_cast<std::size_t>(device.numa_node) >= node.distances.size()) continue;
    text += fmt::format("{}distance {} to the cores of node {}", text.find('(') == std::string::npos ? " (" : ", ",
                        node.distances[static_cast<std::size_t>(device.numa_node)], node.node);
  }
  return text.find('(') == std::string::npos ? text : text + ")";
}

std::string device_text(const CudaDeviceInfo& device, const std::vector<NumaNode>& nodes) {
  std::string text = fmt::format("cuda:{:<8}{}", device.index, device.name);
  if (!device.error.empty()) return text + fmt::format("; cannot be used: {}\n", device.error);
  text += fmt::format(", compute {}.{}, {} multiprocessors; {}, {} free; driver for CUDA {}, runtime {}\n", device.compute_major, device.compute_minor,
                      device.multiprocessors, human_bytes(device.total_bytes), human_bytes(device.free_bytes), cuda_version(device.driver_version),
                      cuda_version(device.runtime_version));
  text += fmt::format("  at         {}{}\n", device.pci_address, distance_text(device, nodes));
  text += fmt::format("  link       {} down, {} up, {} both at once\n", gb_per_s(device.h2d_bytes_per_s), gb_per_s(device.d2h_bytes_per_s),
                      gb_per_s(device.both_ways_bytes_per_s));
  return text + fmt::format("  peers      {}\n", device.peers.empty() ? "none" : fmt::format("cuda:{}", fmt::join(device.peers, ", cuda:")));
}

std::string disk_text(const DiskFacts& disk) {
  if (!disk.error.empty()) return fmt::format("disk         {}: {}\n", disk.path, disk.error);
  return fmt::format("disk         {}: {} on {}{}, {} free; {} read, {} written, {} both at once; a page takes {:.0f} us{}\n", disk.path, disk.file_system, disk.device,
                     disk.numa_node < 0 ? "" : fmt::format(" (node {})", disk.numa_node), human_bytes(disk.free_bytes), gb_per_s(disk.read_bytes_per_s),
                     gb_per_s(disk.write_bytes_per_s), gb_per_s(disk.mixed_bytes_per_s), disk.latency_s * 1e6,
                     disk.buffered ? "; all through the page cache" : "");
}

void advise_on_device(const CudaDeviceInfo& device, const HostFacts& host, std::vector<std::string>& all) {
  if (!device.error.empty()) return;
  const double slower = std::min(device.h2d_bytes_per_s, device.d2h_bytes_per_s);
  if (slower > 0.0 && slower < kSlowLink) {
    all.push_back(fmt::format("cuda:{} has a link of {}: a PCIe 3.0 slot of 16 lanes moves 12 GB/s; see that it sits in a full slot, and which "
                              "node its rank runs on",
                              device.index, gb_per_s(slower)));
  }
  const auto here = std::find_if(host.nodes.begin(), host.nodes.end(), [&](const NumaNode& node) { return node.node == device.numa_node; });
  if (device.numa_node >= 0 && host.nodes.size() > 1 && here != host.nodes.end() && here->cores.empty()) {
    all.push_back(fmt::format("cuda:{} is at node {}, of which this process may use no core: start its rank there (mpirun --bind-to numa, or numactl "
                              "--cpunodebind={})",
                              device.index, device.numa_node, device.numa_node));
  }
}

}  // namespace

std::string machine_text(const MachineReport& report) {
  std::string text = fmt::format("spillway     {}\n{}", report.version, host_text(report.host));
  if (!report.no_cuda.empty()) text += fmt::format("cuda         none: {}\n", report.no_cuda);
  for (const CudaDeviceInfo& device : report.devices) text += device_text(device, report.host.nodes);
  for (const DiskFacts& disk : report.disks) text += disk_text(disk);
  const std::vector<std::string> sentences = advice(report);
  for (const std::string& sentence : sentences) text += fmt::format("advice       {}\n", sentence);
  return sentences.empty() ? text + "advice       nothing to change\n" : text;
}

std::vector<std::string> advice(const MachineReport& report) {
  std::vector<std::string> all;
  const HostFacts& host = report.host;
  if (host.huge_pages == "never") {
    all.emplace_back("huge pages are off, and pinned memory then costs more of every transfer: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  }
  if (host.locked_limit_bytes >= 0 && host.locked_limit_bytes < kEnoughLocked) {
    all.push_back(fmt::format("this process may lock {} of memory: with `ulimit -l unlimited` disk transfers get registered buffers", human_bytes(host.locked_limit_bytes)));
  }
  if (host.io_engine != "io_uring") {
    all.emplace_back("io_uring does not work here, which moves data at the least cost: see sysctl kernel.io_uring_disabled, and the seccomp profile of a container");
  }
  if (host.instruction_set == "scalar") all.emplace_back("the CPU has no AVX2, or SPILLWAY_ISA hides it: the optimizer runs many times slower");
  for (const CudaDeviceInfo& device : report.devices) advise_on_device(device, host, all);
  for (const DiskFacts& disk : report.disks) {
    if (disk.buffered && disk.file_system != "tmpfs") {
      all.push_back(fmt::format("'{}' is on a file system without O_DIRECT: what swaps there passes through the page cache, which takes memory and a core", disk.path));
    }
    if (disk.file_system == "tmpfs") all.push_back(fmt::format("'{}' is memory, not a disk: what swaps to it takes the place it should free", disk.path));
  }
  return all;
}

}  // namespace spillway
