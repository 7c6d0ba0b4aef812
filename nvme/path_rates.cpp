#include "path_rates.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include <fmt/format.h>

#include "base/log.h"
#include "spillway/disk_probe.h"
#include "spillway/error.h"

namespace spillway {

namespace {

constexpr int kUnmeasuredDepth = 32;

// What a measurement depends on: the file system, the engine, the block.
using DiskKey = std::tuple<std::uint64_t, std::string, std::int64_t>;

class Measured {
 public:
  // Of the folders' disks, probing at the same time those that are not known: what they share then shows.
  std::vector<DiskRates> rates(std::span<const DiskKey> keys, std::span<const std::string> folders, const DiskProbeOptions& options) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> unknown;
    std::vector<DiskKey> unknown_keys;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (known_.contains(keys[i]) || std::ranges::find(unknown_keys, keys[i]) != unknown_keys.end()) continue;
      unknown.push_back(folders[i]);
      unknown_keys.push_back(keys[i]);
    }
    if (!unknown.empty()) {
      const std::vector<DiskRates> found = probe_disks(unknown, options);
      for (std::size_t i = 0; i < found.size(); ++i) known_.emplace(unknown_keys[i], found[i]);
    }
    std::vector<DiskRates> all;
    for (const DiskKey& key : keys) all.push_back(known_.at(key));
    return all;
  }

 private:
  std::mutex mutex_;
  std::map<DiskKey, DiskRates> known_;
};

}  // namespace

std::vector<PathRate> path_rates(const SwapStoreOptions& options, std::span<const SwapFile> files) {
  static Measured measured;
  const bool measure_depth = options.engine.depth == 0, shared = files.size() > 1;
  std::vector<PathRate> rates;
  std::vector<DiskKey> keys;
  std::vector<std::string> folders;
  std::vector<std::size_t> wanted;  // indices of paths
  for (std::size_t p = 0; p < files.size(); ++p) {
    const double bandwidth = options.paths[p].bandwidth;
    rates.push_back({bandwidth > 0.0 ? bandwidth : 1.0, measure_depth ? kUnmeasuredDepth : options.engine.depth});
    if (!measure_depth && (!shared || bandwidth > 0.0)) continue;
    keys.emplace_back(files[p].device(), options.engine.name, options.block_bytes);
    folders.push_back(files[p].folder());
    wanted.push_back(p);
  }
  if (wanted.empty()) return rates;

  DiskProbeOptions probe;
  probe.engine = options.engine;
  if (measure_depth) probe.engine.depth = kUnmeasuredDepth;
  probe.block_bytes = options.block_bytes;
  try {
    const std::vector<DiskRates> found = measured.rates(keys, folders, probe);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      PathRate& rate = rates[wanted[i]];
      const auto sharers = std::ranges::count(files, files[wanted[i]].device(), &SwapFile::device);
      if (options.paths[wanted[i]].bandwidth == 0.0) rate.bandwidth = found[i].mixed_bytes / static_cast<double>(sharers);
      if (measure_depth) rate.depth = std::max(1, (depth_for(found[i], options.block_bytes) + options.rings - 1) / options.rings);
    }
  } catch (const IoError& error) {
    log_warning(fmt::format("[nvme] the disks under nvme_path cannot be measured: they get equal shares unless the profile says otherwise, and "
                            "{} requests in flight unless aio.queue_depth does ({})",
                            kUnmeasuredDepth, error.what()));
  }
  return rates;
}

}  // namespace spillway
