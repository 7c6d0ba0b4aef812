#include "report/metrics_writer.h"

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "report/path_use.h"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const TierBytes& bytes) {
  return {{"device", bytes.device}, {"host", bytes.host}, {"nvme", bytes.nvme}};
}

// Names may hold bytes that are no UTF-8 (a path, say); JSON may not. dump() writes non-finite numbers as null.
std::string one_line(const Json& record) { return record.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Records of the steps up to `steps`, line by line. A last line that a death has cut is no JSON, and not kept.
std::string records_until(const std::string& path, std::int64_t steps) {
  std::string kept, line;
  std::ifstream file(path);
  while (std::getline(file, line)) {
    const Json record = Json::parse(line, nullptr, false);
    if (record.is_object() && record.value("step", std::int64_t{0}) <= steps) kept += line + '\n';
  }
  return kept;
}

LineFile open_to_go_on(const std::string& path, std::int64_t steps_before) {
  std::error_code error;
  if (steps_before == 0 || !std::filesystem::is_regular_file(path, error)) return LineFile(path);
  write_whole_file(path, records_until(path, steps_before));
  return LineFile(path, LineFile::Existing::kept);
}

}  // namespace

MetricsWriter::MetricsWriter(const std::string& path, std::int64_t steps_before) : file_(open_to_go_on(path, steps_before)) {}

void MetricsWriter::write(const StartRecord& r) {
  file_.append(one_line({
      {"record", "start"},
      {"model", r.model},
      {"params", r.params},
      {"dtype", r.dtype},
      {"device", r.device},
      {"zero_stage", r.zero_stage},
      {"offload_param", r.offload_param},
      {"offload_optimizer", r.offload_optimizer},
      {"offload_gradients", r.offload_gradients},
      {"offload_activations", r.offload_activations},
      {"world_size", r.world_size},
      {"micro_batch_size", r.micro_batch_size},
      {"accumulation_steps", r.accumulation_steps},
      {"train_batch_size", r.train_batch_size},
      {"sequence_length", r.sequence_length},
      {"first_step", r.first_step},
      {"total_steps", r.total_steps},
      {"seed", r.seed},
      {"predicted_step_ms", r.predicted_step_ms},
      {"binding_lane", r.binding_lane},
      {"planned_bytes", to_json(r.planned)},
  }));
}

void MetricsWriter::write(const StepRecord& r) {
  Json busy = Json::object();
  for (const LaneTime& lane : r.lanes) busy[lane.lane] = lane.busy_ms;
  Json paths = Json::array();
  for (const SwapPathHealth& path : r.nvme_paths) paths.push_back(Json::parse(to_text(path, false)));
  file_.append(one_line({
      {"record", "step"},
      {"step", r.step},
      {"loss", r.loss},
      {"learning_rate", r.learning_rate},
      {"gradient_norm", r.gradient_norm},
      {"loss_scale", r.loss_scale},
      {"skipped", r.skipped},
      {"tokens_per_s", r.tokens_per_s},
      {"samples_per_s", r.samples_per_s},
      {"step_ms", r.step_ms},
      {"predicted_step_ms", r.predicted_step_ms},
      {"data_ms", r.data_ms},
      {"lanes_busy_ms", busy},
      {"nvme_wait_ms", r.nvme_wait_ms},
      {"nvme_paths", paths},
      {"peak_bytes", to_json(r.peak)},
  }));
}

void MetricsWriter::write(const SaveRecord& r) {
  file_.append(one_line({
      {"record", "save"},
      {"step", r.step},
      {"folder", r.folder},
      {"bytes", r.bytes},
      {"seconds", r.seconds},
      {"state_hash", r.state_hash},
      {"error", r.error.empty() ? Json(nullptr) : Json(r.error)},
  }));
}

void MetricsWriter::write(const EvalRecord& r) {
  file_.append(one_line({
      {"record", "eval"},
      {"step", r.step},
      {"loss", r.loss},
      {"tokens", r.tokens},
      {"eval_ms", r.eval_ms},
  }));
}

}  // namespace spillway
