#include <nlohmann/json.hpp>

#include "report/machine_report.h"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

Json host_json(const HostFacts& host) {
  Json nodes = Json::array();
  for (const NumaNode& node : host.nodes) nodes.push_back({{"node", node.node}, {"cores", node.cores}, {"distances", node.distances}});
  return {{"cpu", host.cpu},
          {"cores", host.cores},
          {"nodes", nodes},
          {"memory_bytes", host.total_bytes},
          {"available_bytes", host.available_bytes},
          {"locked_limit_bytes", host.locked_limit_bytes < 0 ? Json() : Json(host.locked_limit_bytes)},
          {"huge_pages", host.huge_pages},
          {"instruction_set", host.instruction_set},
          {"optimizer_bytes_per_s", host.optimizer_bytes_per_s},
          {"io_engine", host.io_engine},
          {"io_engines", host.io_engines}};
}

Json device_json(const CudaDeviceInfo& device) {
  return {{"index", device.index},
          {"name", device.name},
          {"compute", {device.compute_major, device.compute_minor}},
          {"driver_version", device.driver_version},
          {"runtime_version", device.runtime_version},
          {"memory_bytes", device.total_bytes},
          {"free_bytes", device.free_bytes},
          {"multiprocessors", device.multiprocessors},
          {"pci_address", device.pci_address},
          {"numa_node", device.numa_node < 0 ? Json() : Json(device.numa_node)},
          {"peers", device.peers},
          {"h2d_bytes_per_s", device.h2d_bytes_per_s},
          {"d2h_bytes_per_s", device.d2h_bytes_per_s},
          {"both_ways_bytes_per_s", device.both_ways_bytes_per_s},
          {"error", device.error}};
}

Json disk_json(const DiskFacts& disk) {
  return {{"path", disk.path},
          {"file_system", disk.file_system},
          {"device", disk.device},
          {"free_bytes", disk.free_bytes},
          {"numa_node", disk.numa_node < 0 ? Json() : Json(disk.numa_node)},
          {"read_bytes_per_s", disk.read_bytes_per_s},
          {"write_bytes_per_s", disk.write_bytes_per_s},
          {"mixed_bytes_per_s", disk.mixed_bytes_per_s},
          {"latency_s", disk.latency_s},
          {"buffered", disk.buffered},
          {"error", disk.error}};
}

}  // namespace

std::string machine_json(const MachineReport& report) {
  Json devices = Json::array(), disks = Json::array();
  for (const CudaDeviceInfo& device : report.devices) devices.push_back(device_json(device));
  for (const DiskFacts& disk : report.disks) disks.push_back(disk_json(disk));
  const Json json = {{"version", report.version}, {"host", host_json(report.host)}, {"no_cuda", report.no_cuda}, {"devices", devices},
                     {"disks", disks},            {"advice", advice(report)}};
  return json.dump(2);
}

}  // namespace spillway
