// A run in one object: what --summary holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/metrics.h"

namespace spillway {

struct TierPeak {
  std::int64_t used = 0;                    // most bytes in use at once
  std::optional<std::int64_t> budget = {};  // none: no limit was set
};

struct Summary {
  std::int64_t world_size = 1;
  std::int64_t first_step = 1;  // later if the run was resumed
  std::int64_t steps = 0;  // taken, skipped ones included
  std::int64_t skipped_steps = 0;
  double loss_first = 0.0;
  double loss_last = 0.0;
  std::optional<double> eval_loss = {};  // the last one; none: nothing was evaluated
  double tokens_per_s = 0.0;
  double step_ms_median = 0.0;
  double predicted_step_ms = 0.0;
  std::string binding_lane = {};
  std::string state_hash = {};  // hexadecimal
  std::int64_t params = 0;
  std::int64_t state_bytes = 0;  // weights, gradients, master weights and moments
  std::string optimizer = {};    // "adam"
  std::string moments = {};      // their format
  double optimizer_bytes_per_parameter = 0.0;  // master weights and moments
  TierPeak device = {};
  TierPeak host = {};
  TierPeak nvme = {};
  std::int64_t rss_at_start = 0;       // resident bytes of the process right before step 1
  std::int64_t rss_peak_in_steps = 0;  // the most from then on
  std::int64_t rss_peak = 0;           // the most ever, preparations included
  std::optional<double> device_utilization = {};     // mean over steps of the driver's account, 0 to 1; none: it keeps none
  std::optional<std::int64_t> device_used_peak = {};  // bytes of its memory, by all processes and the driver
  std::vector<LaneTime> lanes = {};  // busy_ms per step
  double nvme_read_bytes_per_step = 0.0;
  double nvme_write_bytes_per_step = 0.0;
  double nvme_wait_ms_per_step = 0.0;            // mean over steps of what they waited for NVMe
  double predicted_nvme_wait_ms = 0.0;
  std::vector<SwapPathHealth> nvme_paths = {};   // over all steps
  std::vector<RankRecord> ranks = {};
  std::vector<SaveRecord> saves = {};
  std::string config_effective = {};  // JSON
};

// The JSON text, with config_effective as a nested object and non-finite numbers as null.
std::string summary_json(const Summary& summary);

// The same into a file that appears whole or not at all. Throws IoError.
void write_summary(const std::string& path, const Summary& summary);

}  // namespace spillway
