#include "checkpoint/differences.h"

#include <fmt/format.h>

namespace spillway::checkpoint {

namespace {

class Comparison {
 public:
  template <class T>
  Comparison& field(std::string_view name, const T& first, const T& second) {
    if (!(first == second)) found.push_back({std::string(name), fmt::format("{}", first), fmt::format("{}", second)});
    return *this;
  }

  std::vector<FieldDifference> found;
};

}  // namespace

std::vector<FieldDifference> differences(const ModelSpec& first, const ModelSpec& second) {
  const auto mlp = [](const ModelSpec& spec) { return spec.mlp_channels == 0 ? 4 * spec.channels : spec.mlp_channels; };
  Comparison comparison;
  comparison.field("layers", first.layers, second.layers)
      .field("channels", first.channels, second.channels)
      .field("heads", first.heads, second.heads)
      .field("vocabulary", first.vocabulary, second.vocabulary)
      .field("context", first.context, second.context)
      .field("mlp_channels", mlp(first), mlp(second))
      .field("layernorm_epsilon", first.layernorm_epsilon, second.layernorm_epsilon);
  return comparison.found;
}

std::vector<FieldDifference> differences(const RunState& first, const RunState& second) {
  Comparison comparison;
  comparison.field("step", first.step, second.step)
      .field("applied steps", first.applied_steps, second.applied_steps)
      .field("skipped steps", first.skipped_steps, second.skipped_steps)
      .field("loss scale", first.loss_scaler.scale, second.loss_scaler.scale)
      .field("loss scaler: updates", first.loss_scaler.updates, second.loss_scaler.updates)
      .field("loss scaler: last overflow", first.loss_scaler.last_overflow, second.loss_scaler.last_overflow)
      .field("loss scaler: hysteresis left", first.loss_scaler.hysteresis_left, second.loss_scaler.hysteresis_left)
      .field("seed", first.seed, second.seed)
      .field("epoch", first.cursor.epoch, second.cursor.epoch)
      .field("sample of the epoch", first.cursor.position, second.cursor.position)
      .field("global batch", first.global_batch, second.global_batch)
      .field("sequence length", first.sequence_length, second.sequence_length)
      .field("data", first.data, second.data)
      .field("configuration", first.config_json, second.config_json);
  return comparison.found;
}

}  // namespace spillway::checkpoint
