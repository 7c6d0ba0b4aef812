#include "report/metrics_writer.h"

#include <nlohmann/json.hpp>

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const TierBytes& bytes) {
  return {{"device", bytes.device}, {"host", bytes.host}, {"nvme", bytes.nvme}};
}

// Names may hold bytes that are no UTF-8 (a path, say); JSON may not. dump() writes non-finite numbers as null.
std::string one_line(const Json& record) { return record.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

MetricsWriter::MetricsWriter(const std::string& path) : file_(path) {}

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
      {"peak_bytes", to_json(r.peak)},
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
