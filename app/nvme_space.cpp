#include "app/nvme_space.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "spillway/swap_store.h"

namespace spillway::app {

namespace {

std::optional<dev_t> file_system_of(const std::string& folder) {
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0) return std::nullopt;
  return status.st_dev;
}

// The first folder on the same file system; the folder's own index if there is none before it.
std::size_t first_on_file_system(std::span<const std::string> folders, std::size_t index) {
  const std::optional<dev_t> here = file_system_of(folders[index]);
  for (std::size_t i = 0; i < index; ++i) {
    if (here && file_system_of(folders[i]) == here) return i;
  }
  return index;
}

}  // namespace

std::int64_t free_nvme_bytes(std::span<const std::string> folders) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const std::int64_t free = free_bytes(folders[i]);
    if (first_on_file_system(folders, i) == i) sum += free;
  }
  return sum;
}

void warn_of_shared_disks(std::span<const std::string> folders) {
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const std::size_t first = first_on_file_system(folders, i);
    if (first == i) continue;
    log_warning(fmt::format("[nvme] '{}' and '{}' are on one file system: striping over both is no faster than either; name folders on different disks",
                            folders[first], folders[i]));
  }
}

DiskProbeOptions probe_options(const Config& config) {
  // Larger blocks and deeper queues tell no more of a disk than these, and take memory.
  constexpr std::int64_t kLargestBlock = 8 << 20, kMostInFlight = 128 << 20;
  DiskProbeOptions probe;
  probe.engine.name = config.spillway.io_engine;
  probe.engine.submission_polling = config.spillway.submission_polling;
  probe.engine.completion_polling = config.spillway.completion_polling;
  probe.block_bytes = std::min(config.aio.block_size.value_or(probe.block_bytes), kLargestBlock);
  const std::int64_t depth = config.aio.queue_depth ? *config.aio.queue_depth * config.aio.intra_op_parallelism : probe.engine.depth;
  probe.engine.depth = static_cast<int>(std::clamp<std::int64_t>(depth, 1, std::min<std::int64_t>(4096, kMostInFlight / probe.block_bytes)));
  return probe;
}

}  // namespace spillway::app
