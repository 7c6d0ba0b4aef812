#include "path_rates.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "base/log.h"
#include "spillway/disk_probe.h"
#include "spillway/error.h"

namespace spillway {

namespace {

constexpr int kUnmeasuredDepth = 32;

}  // namespace

std::vector<PathRate> path_rates(const SwapStoreOptions& options, std::span<const SwapFile> files) {
  const bool measure_depth = options.engine.depth == 0, shared = files.size() > 1;
  std::vector<PathRate> rates;
  std::vector<std::string> folders;  // to be measured, together: what they share then shows
  std::vector<std::size_t> wanted;   // indices of paths
  for (std::size_t p = 0; p < files.size(); ++p) {
    const double bandwidth = options.paths[p].bandwidth;
    rates.push_back({bandwidth > 0.0 ? bandwidth : 1.0, measure_depth ? kUnmeasuredDepth : options.engine.depth});
    if (!measure_depth && (!shared || bandwidth > 0.0)) continue;
    folders.push_back(files[p].folder());
    wanted.push_back(p);
  }
  if (wanted.empty()) return rates;

  DiskProbeOptions probe;
  probe.engine = options.engine;
  if (measure_depth) probe.engine.depth = kUnmeasuredDepth;
  probe.block_bytes = options.block_bytes;
  try {
    const std::vector<DiskRates> found = disk_rates(folders, probe);
    // Folders of one disk are equals: what chance gave the one and took from the other while they were measured is shared out.
    std::map<std::uint64_t, std::vector<double>> of_disk;
    for (std::size_t i = 0; i < wanted.size(); ++i) of_disk[files[wanted[i]].device()].push_back(found[i].mixed_bytes);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      PathRate& rate = rates[wanted[i]];
      const std::vector<double>& sharers = of_disk[files[wanted[i]].device()];
      if (options.paths[wanted[i]].bandwidth == 0.0) {
        rate.bandwidth = std::accumulate(sharers.begin(), sharers.end(), 0.0) / static_cast<double>(sharers.size());
      }
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
