// What `spillway tune` prints and writes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "spillway/cost.h"
#include "spillway/disk_tuner.h"

namespace spillway {

// An engine that was left out, and why.
struct UnusableEngine {
  std::string name;
  std::string reason;
};

struct TuneReport {
  std::vector<std::string> folders;
  std::vector<std::vector<DiskSample>> samples;  // by folder
  std::size_t best = 0;                          // index into each folder's
  std::vector<UnusableEngine> unusable;

  const DiskSetting& setting() const { return samples.front()[best].setting; }
};

// A table with a line per setting and folder, the best marked.
std::string tune_text(const TuneReport& report);

// A configuration of an "aio" section, as DeepSpeed and Spillway read it, and, if `names_engine`, of spillway.io_engine.
std::string aio_json(const DiskSetting& setting, bool names_engine);

// The rates as a profile, with notes of which were measured and which are defaults.
std::string profile_json(const MachineRates& rates, const TuneReport& report, const std::vector<std::string>& not_measured);

}  // namespace spillway
