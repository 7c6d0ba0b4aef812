// Which engine, block size and depth move the most on the disks of the NVMe tier: a sweep of probes, and the choice.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "spillway/disk_probe.h"

namespace spillway {

struct DiskSetting {
  std::string engine;
  std::int64_t block_bytes = 0;
  int depth = 0;

  std::int64_t bytes_in_flight() const { return block_bytes * depth; }
};

// Every combination of these engines with blocks of 128 KiB to 8 MiB and depths of 1 to 128, but for those that keep more
// than 64 MiB in flight, which no disk asks for. Quick: a few of them. Engine by engine, then smaller blocks first, then
// smaller depths.
std::vector<DiskSetting> disk_settings(std::span<const std::string> engines, bool quick);

struct DiskSweepOptions {
  std::vector<DiskSetting> settings;
  int rounds = 3;                  // of all settings on all folders, so that a disturbance falls on all alike
  double seconds_per_rate = 0.05;  // of one probe: see DiskProbeOptions
  double limit_s = 600.0;          // no probe begins after so long
  std::function<void(int done, int total)> progress = {};  // after each probe
};

// Medians over the rounds.
struct DiskSample {
  DiskSetting setting;
  DiskRates rates;
  int rounds = 0;  // that had the time
};

// By folder, then by setting; settings that were not measured on every folder are left out. Blocks while it measures.
// Throws the IoError of the first probe that fails.
std::vector<std::vector<DiskSample>> sweep_disks(std::span<const std::string> folders, const DiskSweepOptions& options);

// The index of the setting to use on all folders together (samples of each are in the same order), by the sum of the mixed
// rates. Of those within 3 % of the best the simplest: fewest bytes in flight, which a read that the step waits for would
// queue behind, then the smallest depth, then the first.
std::size_t best_setting(std::span<const std::vector<DiskSample>> by_folder);

}  // namespace spillway
