// The values of a configuration file, key by key, before the rules between keys: what the rows of the key table
// bind to. Most keys are a field of Config itself; the others stand beside it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/config.h"

namespace spillway::config {

enum class CommunicationType : std::uint8_t { as_model, fp16, bf16, fp32 };

// optimizer.params. Unset: the default of the optimizer in use; stays unset when that optimizer does not take it.
struct OptimizerParameters {
  std::optional<double> lr{};
  std::optional<std::array<double, 2>> betas{};
  std::optional<double> eps{};
  std::optional<double> weight_decay{};
  std::optional<bool> bias_correction{};
  std::optional<bool> adam_w_mode{};
  std::optional<double> momentum{};
  std::optional<double> dampening{};
  std::optional<bool> nesterov{};
  std::optional<double> lr_decay{};
  std::optional<double> initial_accumulator_value{};
};

struct Settings {
  Config config;

  std::optional<std::int64_t> train_batch_size;
  std::optional<std::int64_t> micro_batch_size;
  std::optional<std::int64_t> accumulation_steps;

  bool fp16_enabled = false;
  bool bf16_enabled = false;
  double loss_scale = 0.0;  // 0: dynamic
  CommunicationType communication = CommunicationType::as_model;

  OptimizerParameters optimizer;
  MomentFormat moments = MomentFormat::f32;
  std::optional<bool> bf16_optimizer_states;
  std::optional<bool> fp32_optimizer_states;

  // Unset: the default of the schedule in use; stays unset when that schedule does not read it.
  std::optional<double> warmup_min_lr;
  std::optional<double> warmup_max_lr;
  std::optional<std::int64_t> warmup_num_steps;
  std::optional<std::string> warmup_type;
  std::optional<std::int64_t> total_num_steps;
  std::optional<double> warmup_min_ratio;
  std::optional<double> cos_min_ratio;

  bool cpu_checkpointing = false;  // activation_checkpointing

  // Folders named for what need not be on NVMe: what is in force is in `config`.
  std::vector<std::string> param_nvme_paths;
  std::vector<std::string> optimizer_nvme_paths;
  bool use_gds = false;  // aio

  // Deprecated spellings of the offload sections.
  std::optional<bool> cpu_offload;
  std::optional<bool> cpu_offload_param;
  std::optional<bool> cpu_offload_use_pin_memory;
};

// What the file says about a key: where, and (for a key that Spillway does not use) what.
struct Given {
  KeyReport::Source source = KeyReport::Source::file;  // default_value when it says null
  int line = 0;
  std::string value;  // as JSON, of a key without a slot
};

// By canonical path. Sections that the file opens are in it too.
class Provenance {
 public:
  void record(std::string_view path, Given given) { given_.insert_or_assign(std::string(path), std::move(given)); }

  const Given* find(std::string_view path) const {
    const auto found = given_.find(path);
    return found == given_.end() ? nullptr : &found->second;
  }

  // The file sets the key to a value (not null, not "auto").
  bool is_set(std::string_view path) const {
    const Given* given = find(path);
    return given != nullptr && given->source == KeyReport::Source::file;
  }

  bool is_automatic(std::string_view path) const {
    const Given* given = find(path);
    return given != nullptr && given->source == KeyReport::Source::automatic;
  }

  int line(std::string_view path) const {
    const Given* given = find(path);
    return given == nullptr ? 0 : given->line;
  }

  // A value worked out from others. What the file asked for ("auto" included) keeps its own source.
  void mark_derived(std::string_view path) {
    if (is_set(path) || is_automatic(path)) return;
    record(path, {.source = KeyReport::Source::derived, .line = line(path), .value = {}});
  }

 private:
  std::map<std::string, Given, std::less<>> given_;
};

}  // namespace spillway::config
