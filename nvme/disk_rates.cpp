#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <sys/stat.h>

#include "spillway/disk_probe.h"

namespace spillway {

namespace {

// What a measurement depends on: the file systems, and how they are used.
using ProbeKey = std::tuple<std::vector<dev_t>, std::string, bool, bool, int, std::int64_t>;

ProbeKey key_of(std::span<const std::string> folders, const DiskProbeOptions& options) {
  std::vector<dev_t> devices;
  for (const std::string& folder : folders) {
    struct stat status{};
    devices.push_back(stat(folder.c_str(), &status) == 0 ? status.st_dev : 0);  // a folder that is not there is not measured either
  }
  const IoEngineOptions& engine = options.engine;
  return {std::move(devices), engine.name, engine.submission_polling, engine.completion_polling, engine.depth, options.block_bytes};
}

}  // namespace

std::vector<DiskRates> disk_rates(std::span<const std::string> folders, const DiskProbeOptions& options) {
  static std::mutex mutex;
  static std::map<ProbeKey, std::vector<DiskRates>> known;
  const std::lock_guard lock(mutex);
  const ProbeKey key = key_of(folders, options);
  auto found = known.find(key);
  if (found == known.end()) found = known.emplace(key, probe_disks(folders, options)).first;
  return found->second;
}

}  // namespace spillway
