#include <nlohmann/json.hpp>

#include "report/file_output.h"
#include "report/path_use.h"
#include "report/rank_record.h"
#include "report/summary.h"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json to_json(const TierPeak& peak) { return {{"used", peak.used}, {"budget", or_null(peak.budget)}}; }

}  // namespace

std::string summary_json(const Summary& s) {
  Json lanes = Json::object();
  for (const LaneTime& lane : s.lanes) lanes[lane.lane] = {{"busy_ms_per_step", lane.busy_ms}};
  Json paths = Json::array();
  for (const SwapPathHealth& path : s.nvme_paths) paths.push_back(Json::parse(to_text(path, true)));
  Json ranks = Json::array(), saves = Json::array();
  for (const RankRecord& rank : s.ranks) ranks.push_back(Json::parse(to_text(rank)));
  for (const SaveRecord& save : s.saves) {
    saves.push_back({{"step", save.step}, {"folder", save.folder}, {"bytes", save.bytes}, {"seconds", save.seconds}, {"state_hash", save.state_hash},
                     {"error", save.error.empty() ? Json(nullptr) : Json(save.error)}});
  }
  const Json summary = {
      {"steps", s.steps},
      {"first_step", s.first_step},
      {"world_size", s.world_size},
      {"skipped_steps", s.skipped_steps},
      {"loss_first", s.loss_first},
      {"loss_last", s.loss_last},
      {"eval_loss", or_null(s.eval_loss)},
      {"tokens_per_s", s.tokens_per_s},
      {"step_ms_median", s.step_ms_median},
      {"predicted_step_ms", s.predicted_step_ms},
      {"binding_lane", s.binding_lane},
      {"state_hash", s.state_hash},
      {"params", s.params},
      {"state_bytes", s.state_bytes},
      {"optimizer", {{"kind", s.optimizer}, {"moments", s.moments}, {"state_bytes_per_parameter", s.optimizer_bytes_per_parameter}}},
      {"peak", {{"device", to_json(s.device)}, {"host", to_json(s.host)}, {"nvme", to_json(s.nvme)}}},
      {"rss_at_start", s.rss_at_start},
      {"rss_peak_in_steps", s.rss_peak_in_steps},
      {"rss_peak", s.rss_peak},
      {"driver", {{"utilization", or_null(s.device_utilization)}, {"used_bytes_peak", or_null(s.device_used_peak)}}},
      {"lanes", lanes},
      {"nvme",
       {{"read_bytes_per_step", s.nvme_read_bytes_per_step},
        {"write_bytes_per_step", s.nvme_write_bytes_per_step},
        {"wait_ms_per_step", s.nvme_wait_ms_per_step},
        {"predicted_wait_ms_per_step", s.predicted_nvme_wait_ms},
        {"paths", paths}}},
      {"ranks", ranks},
      {"saves", saves},
      {"config_effective", s.config_effective.empty() ? Json::object() : Json::parse(s.config_effective)},
  };
  return summary.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

void write_summary(const std::string& path, const Summary& summary) {
  write_whole_file(path, summary_json(summary));
}

}  // namespace spillway
