// The folders of the NVMe tier as the program looks at them before a run: how much room, and how their disks are measured.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "spillway/config.h"
#include "spillway/disk_probe.h"

namespace spillway::app {

// Bytes free under all of them, each file system counted once. Throws IoError if one does not exist.
std::int64_t free_nvme_bytes(std::span<const std::string> folders);

// Says which of them are on one file system, where striping adds no bandwidth.
void warn_of_shared_disks(std::span<const std::string> folders);

// Measures as a run with this configuration reads and writes.
DiskProbeOptions probe_options(const Config& config);

}  // namespace spillway::app
