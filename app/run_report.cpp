#include "app/run_report.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/state_format.h"
#include "base/text.h"
#include "memory/process_memory.h"
#include "report/console.h"
#include "runtime/critical_path.h"
#include "spillway/error.h"

namespace spillway::app {

namespace {

constexpr std::int64_t kPrintEvery = 10;
// A trace past this many tasks is no longer loaded with pleasure; later steps are left out.
constexpr std::int64_t kMostTracedTasks = 200'000;

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::vector<std::string> lane_names() {
  std::vector<std::string> names;
  for (int lane = 0; lane < kLanes; ++lane) names.emplace_back(name_of(static_cast<Lane>(lane)));
  return names;
}

std::string_view name_of_device(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::none: return "none";
    case OffloadDevice::cpu: return "cpu";
    case OffloadDevice::nvme: return "nvme";
  }
  return "?";
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// "weights: host 100%; optimizer state: host 25%, nvme 75%"; gradients and activation checkpoints follow if they are not where they
// are by default.
std::string placement_text(const Plan& plan) {
  std::array<std::int64_t, kTiers> weights{}, state{}, gradients{};
  for (const LayerPlan& layer : plan.layers) {
    weights[static_cast<std::size_t>(layer.weights_tier)] += layer.num_elements;
    gradients[static_cast<std::size_t>(layer.gradient_tier)] += layer.owned.size();
  }
  for (const TilePlan& tile : plan.tiles) state[static_cast<std::size_t>(tile.tier)] += tile.num_elements();
  const auto shares = [&](const std::array<std::int64_t, kTiers>& elements) {
    const std::int64_t total = std::max<std::int64_t>(1, elements[0] + elements[1] + elements[2]);
    std::string text;
    for (int t = 0; t < kTiers; ++t) {
      const std::int64_t n = elements[static_cast<std::size_t>(t)];
      if (n > 0) text += fmt::format("{}{} {:.0f}%", text.empty() ? "" : ", ", name_of(static_cast<Tier>(t)), 100.0 * static_cast<double>(n) / static_cast<double>(total));
    }
    return text;
  };
  std::string text = fmt::format("weights: {}; optimizer state: {}", shares(weights), shares(state));
  if (gradients[static_cast<std::size_t>(Tier::nvme)] > 0) text += fmt::format("; gradients: {}", shares(gradients));
  const Tier activations = plan.layers.front().activation_tier;
  if (activations != Tier::device) text += fmt::format("; activation checkpoints: {}", name_of(activations));
  return text;
}

TraceEvent trace_event(const Plan& plan, std::size_t index, std::int64_t start_ns, std::int64_t duration_ns, std::int64_t step) {
  const Task& task = plan.step.tasks[index];
  const std::string_view layer = task.layer < 0 ? std::string_view() : plan.layers[static_cast<std::size_t>(task.layer)].name;
  return {name_of(task.kind), static_cast<int>(task.lane), start_ns, duration_ns, step, layer, task.tile, task.bytes > 0 ? task.bytes : -1};
}

}  // namespace

TierBytes peaks_of(const Engine& engine) {
  return {engine.measured_peak(Tier::device), engine.measured_peak(Tier::host), engine.measured_peak(Tier::nvme)};
}

TierBytes planned_peaks(const Plan& plan) {
  return {plan.tiers[0].peak, plan.tiers[1].peak, plan.tiers[2].peak};
}

RunReport::RunReport(const TrainOptions& options, const Config& config, const ModelSpec& spec, double unigram_entropy)
    : options_(options),
      config_(config),
      spec_(spec),
      unigram_entropy_(unigram_entropy),
      print_every_(config.steps_per_print > 0 ? config.steps_per_print : kPrintEvery) {}

void RunReport::show_plan(const Plan& plan) const {
  const BatchShape& shape = plan.request.shape;
  const std::int64_t world = config_.world_size;
  print(fmt::format("model {}: {} parameters in {} layers, {}; batch {} = {} x {} accumulation{}, {} tokens a step\n", spec_.name,
                    human_count(plan.num_parameters()), plan.layers.size(), name_of(config_.dtype), config_.train_batch_size, shape.batch,
                    config_.accumulation_steps, world > 1 ? fmt::format(" x {} ranks", world) : "", config_.train_batch_size * shape.time));
  print(fmt::format("training state {}; optimizer {}, {:.4g} bytes of state a parameter\n{}\n{}{}", human_bytes(plan.state_bytes()), text_of(plan.request.state),
                    state_bytes_per_parameter(plan.request.state), placement_text(plan),
                    world > 1 ? fmt::format("ZeRO stage {}, {} ranks share state; rank 0 of {} has\n", config_.zero_stage, plan.partition_size, world) : "",
                    ledger_text(plan)));
}

void RunReport::resumed(const std::string& folder, std::int64_t step, std::uint64_t state_hash, std::int64_t world_size) const {
  print(fmt::format("resumed from {}, saved after step {} by {} rank{}; state {}\n", folder, step, world_size, world_size == 1 ? "" : "s", hex64(state_hash)));
}

void RunReport::saved(const checkpoint::SaveResult& result, bool goes_on) {
  if (result.ok()) {
    const double rate = result.seconds > 0.0 ? static_cast<double>(result.bytes) / result.seconds : 0.0;
    print(fmt::format("saved {}: {} in {:.1f} s ({}/s), state {}\n", result.folder, human_bytes(result.bytes), result.seconds,
                      human_bytes(static_cast<std::int64_t>(rate)), hex64(result.state_hash)));
  } else {
    std::fflush(stdout);
    log(LogLevel::error, fmt::format("the checkpoint of step {} was not written: {}; {}", result.step, result.error,
                                     goes_on ? "training goes on, and the checkpoints before it are intact" : "the run ends, and the checkpoints before it are intact"));
  }
  const SaveRecord record{result.step, result.folder, result.bytes, result.seconds, hex64(result.state_hash), result.error};
  saves_.push_back(record);
  write_metrics(record);
}

// A run of days does not end for a line that says how it goes: what the disk does not take is left out.
template <class Record>
void RunReport::write_metrics(const Record& record) {
  if (!metrics_) return;
  try {
    metrics_->write(record);
  } catch (const IoError& error) {
    if (!std::exchange(metrics_failed_, true)) log_warning(fmt::format("{}; training goes on, and what cannot be written is left out", error.what()));
  }
}

void RunReport::start(Engine& engine, std::int64_t steps_before) {
  engine_ = &engine;
  steps_before_ = steps_before;
  if (!options_.metrics.empty()) metrics_.emplace(options_.metrics, steps_before);
  if (!options_.trace.empty()) {
    trace_.emplace(options_.trace, lane_names());
    trace_prediction();
  }
  step_ms_.reserve(static_cast<std::size_t>(options_.run.steps));
  device_utilization_.reserve(static_cast<std::size_t>(options_.run.steps));
  curve_.train.reserve(static_cast<std::size_t>(options_.run.steps));
  const Simulation& predicted = engine.prediction();
  print(fmt::format("predicted step {:.0f} ms, bound by {}; plan {} of {} tasks\n", predicted.step_s * 1e3, name_of(predicted.binding),
                    hex64(plan().hash), plan().step.tasks.size()));
  write_metrics(start_record());
  nvme_.start(engine.store());
  rss_peak_before_ = peak_resident_bytes();
  restart_peak_resident();
  rss_at_start_ = resident_bytes();
}

StartRecord RunReport::start_record() const {
  StartRecord start;
  start.model = spec_.name;
  start.params = plan().num_parameters();
  start.dtype = name_of(config_.dtype);
  start.device = engine_->device().name();
  start.zero_stage = config_.zero_stage;
  start.offload_param = name_of_device(config_.offload_param.device);
  start.offload_optimizer = name_of_device(config_.offload_optimizer.device);
  start.offload_gradients = name_of_device(config_.spillway.offload_gradients);
  start.offload_activations = name_of_device(config_.offload_activations);
  start.world_size = config_.world_size;
  start.micro_batch_size = config_.micro_batch_size;
  start.accumulation_steps = config_.accumulation_steps;
  start.train_batch_size = config_.train_batch_size;
  start.sequence_length = plan().request.shape.time;
  start.first_step = steps_before_ + 1;
  start.total_steps = options_.run.steps;
  start.seed = options_.seed;
  start.predicted_step_ms = engine_->prediction().step_s * 1e3;
  start.binding_lane = name_of(engine_->prediction().binding);
  start.planned = planned_peaks(plan());
  return start;
}

StepRecord RunReport::record_of(const StepResult& result, double data_ms) {
  StepRecord record;
  record.step = result.step;
  record.loss = result.verdict.loss;
  record.learning_rate = result.verdict.learning_rate;
  record.gradient_norm = result.verdict.gradient_norm;
  record.loss_scale = result.verdict.loss_scale;
  record.skipped = result.verdict.skip;
  record.step_ms = result.step_ms;
  const double per_s = 1e3 / std::max(1e-6, result.step_ms);
  record.samples_per_s = static_cast<double>(config_.train_batch_size) * per_s;
  record.tokens_per_s = record.samples_per_s * static_cast<double>(plan().request.shape.time);
  record.predicted_step_ms = engine_->prediction().step_s * 1e3;
  record.data_ms = data_ms;
  for (int lane = 0; lane < kLanes && timed_steps_ > 0; ++lane) {
    record.lanes.push_back({std::string(name_of(static_cast<Lane>(lane))), last_busy_ms_[static_cast<std::size_t>(lane)]});
  }
  record.peak = peaks_of(*engine_);
  record.nvme_paths = nvme_.since_last_look();
  record.nvme_wait_ms = nvme_.last_wait_ms();
  return record;
}

// Takes in the lanes' times of the last step that has them.
void RunReport::note_times() {
  const std::optional<StepTimes> times = engine_->last_times();
  if (!times) return;
  ++timed_steps_;
  last_busy_ms_ = times->busy_ms;
  nvme_.note_step(plan().step, times->tasks);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    busy_ms_[lane] += times->busy_ms[lane];
    unprinted_busy_ms_[lane] += times->busy_ms[lane];
  }
  last_kind_ms_.fill(0.0);
  for (std::size_t i = 0; i < times->tasks.size(); ++i) {
    last_kind_ms_[static_cast<std::size_t>(plan().step.tasks[i].kind)] += static_cast<double>(times->tasks[i].end_ns - times->tasks[i].start_ns) * 1e-6;
  }
  if (!step_ms_.empty()) unprinted_ms_ += step_ms_.back();  // times come one step late
  const auto tasks = static_cast<std::int64_t>(times->tasks.size());
  if (!trace_ || traced_tasks_ + tasks > kMostTracedTasks) return;
  traced_tasks_ += tasks;
  try {
    trace_times(*times);
  } catch (const IoError& error) {
    trace_.reset();
    log_warning(fmt::format("{}; training goes on, without a trace", error.what()));
  }
}

std::vector<LaneShare> RunReport::lane_shares() {
  std::vector<LaneShare> shares;
  if (unprinted_ms_ <= 0.0) return shares;
  for (int lane = 0; lane < kLanes; ++lane) {
    // A lane's work of a step may begin under the step before: the share of a short stretch can round past 1.
    const double share = std::min(1.0, unprinted_busy_ms_[static_cast<std::size_t>(lane)] / unprinted_ms_);
    shares.push_back({std::string(name_of(static_cast<Lane>(lane))), share});
  }
  unprinted_busy_ms_.fill(0.0);
  unprinted_ms_ = 0.0;
  return shares;
}

// Where the lanes spent the step before, by kind of task; lanes overlap, so this adds up to more than the step.
std::string RunReport::breakdown_text() const {
  std::string text;
  for (int kind = 0; kind < kTaskKinds; ++kind) {
    const double ms = last_kind_ms_[static_cast<std::size_t>(kind)];
    if (ms > 0.0) text += fmt::format("{}{} {:.1f} ms", text.empty() ? "  " : " | ", name_of(static_cast<TaskKind>(kind)), ms);
  }
  return text.empty() ? text : text + "\n";
}

void RunReport::trace_times(const StepTimes& times) {
  if (trace_origin_ns_ < 0) {
    trace_origin_ns_ = times.tasks[0].start_ns;
    for (const TaskTime& time : times.tasks) trace_origin_ns_ = std::min(trace_origin_ns_, time.start_ns);
  }
  for (std::size_t i = 0; i < times.tasks.size(); ++i) {
    const TaskTime& time = times.tasks[i];
    trace_->add(Timeline::measured, trace_event(plan(), i, time.start_ns - trace_origin_ns_, time.end_ns - time.start_ns, timed_steps_));
  }
}

void RunReport::trace_prediction() {
  for (const SimulatedTask& simulated : engine_->prediction().timeline) {
    const auto ns = [](double s) { return static_cast<std::int64_t>(s * 1e9); };
    trace_->add(Timeline::predicted, trace_event(plan(), static_cast<std::size_t>(simulated.task), ns(simulated.start_s),
                                                 ns(simulated.end_s - simulated.start_s), 1));
  }
}

void RunReport::note_device_use() {
  const std::optional<DeviceUse> use = engine_->device().use();
  if (!use) return;
  device_utilization_.push_back(use->utilization);
  device_used_peak_ = std::max(device_used_peak_, use->used_bytes);
}

void RunReport::step(const StepResult& result, double data_ms) {
  ++steps_;
  note_times();
  note_device_use();
  const StepRecord record = record_of(result, data_ms);
  step_ms_.push_back(result.step_ms);
  curve_.train.push_back({result.step, result.verdict.loss});
  write_metrics(record);
  const bool last = result.step == options_.run.steps;
  if (steps_ == 1 || last || result.step % print_every_ == 0 || result.verdict.skip) {
    print(progress_line(record, options_.run.steps, lane_shares()) + "\n");
    if (config_.wall_clock_breakdown) print(breakdown_text());
  }
  if (result.verdict.skip) {
    print(fmt::format("  step {} changed nothing: the gradient of {} is not finite; loss scale {} -> {}\n", result.step, result.non_finite_tensor,
                      result.verdict.loss_scale, result.verdict.scaling.change == ScaleChange::halved ? result.verdict.loss_scale / 2 : result.verdict.loss_scale));
  }
}

void RunReport::evaluation(std::int64_t step, double loss, std::int64_t targets, double ms) {
  eval_loss_ = loss;
  curve_.eval.push_back({step, loss});
  write_metrics(EvalRecord{step, loss, targets, ms});
  print(fmt::format("step {:>4} | eval loss {:.4f} over {} tokens\n", step, loss, with_thousands(targets)));
}

Summary RunReport::summary(std::uint64_t state_hash, const std::vector<RankRecord>& ranks) const {
  Summary summary;
  summary.world_size = config_.world_size;
  summary.ranks = ranks;
  summary.saves = saves_;
  summary.first_step = steps_before_ + 1;
  summary.steps = steps_;
  summary.skipped_steps = engine_->skipped_steps();
  if (!curve_.train.empty()) {
    summary.loss_first = curve_.train.front().loss;
    summary.loss_last = curve_.train.back().loss;
  }
  summary.eval_loss = eval_loss_;
  summary.step_ms_median = median(step_ms_);
  const double tokens = static_cast<double>(config_.train_batch_size * plan().request.shape.time);
  summary.tokens_per_s = summary.step_ms_median > 0.0 ? tokens * 1e3 / summary.step_ms_median : 0.0;
  summary.predicted_step_ms = engine_->prediction().step_s * 1e3;
  summary.binding_lane = name_of(engine_->prediction().binding);
  summary.state_hash = hex64(state_hash);
  summary.params = plan().num_parameters();
  summary.state_bytes = plan().state_bytes();
  const StateFormat& state = plan().request.state;
  summary.optimizer = traits_of(state.kind).name;
  summary.moments = name_of(state.moments);
  summary.optimizer_bytes_per_parameter = state_bytes_per_parameter(state);
  const TierBytes used = peaks_of(*engine_);
  summary.device = {used.device, plan().tiers[0].budget};
  summary.host = {used.host, plan().tiers[1].budget};
  summary.nvme = {used.nvme, plan().tiers[2].budget};
  summary.rss_at_start = rss_at_start_;
  summary.rss_peak_in_steps = rss_peak_in_steps_;
  summary.rss_peak = std::max(rss_peak_before_, peak_resident_bytes());
  if (!device_utilization_.empty()) {
    const double sum = std::accumulate(device_utilization_.begin(), device_utilization_.end(), 0.0);
    summary.device_utilization = sum / static_cast<double>(device_utilization_.size());
    summary.device_used_peak = device_used_peak_;
  }
  const double timed = static_cast<double>(std::max<std::int64_t>(1, timed_steps_));
  for (int lane = 0; lane < kLanes; ++lane) {
    summary.lanes.push_back({std::string(name_of(static_cast<Lane>(lane))), busy_ms_[static_cast<std::size_t>(lane)] / timed});
  }
  for (const Task& task : plan().step.tasks) {
    if (is_nvme(task.lane)) (writes_nvme(task.kind) ? summary.nvme_write_bytes_per_step : summary.nvme_read_bytes_per_step) += static_cast<double>(task.bytes);
  }
  summary.nvme_wait_ms_per_step = nvme_.wait_ms_per_step();
  summary.predicted_nvme_wait_ms = 1e3 * nvme_wait(engine_->prediction().critical_s);
  summary.nvme_paths = nvme_.of_all_steps();
  summary.config_effective = config_.effective_json;
  return summary;
}

std::vector<OutputFile> RunReport::write_files(const Summary& summary) {
  std::vector<OutputFile> files;
  if (!options_.curve.empty()) {
    curve_.title = fmt::format("{} on {}", spec_.name, options_.run.data.front());
    curve_.subtitle = placement_text(plan());
    curve_.references = {{"unigram entropy of the text", unigram_entropy_}};
    write_loss_curve(options_.curve, curve_);
    files.push_back({"loss curve", options_.curve});
  }
  if (trace_) {
    trace_->finish();
    files.push_back({"trace", options_.trace});
  }
  if (metrics_) files.push_back({"metrics", options_.metrics});
  if (!options_.summary.empty()) {
    write_summary(options_.summary, summary);
    files.push_back({"summary", options_.summary});
  }
  return files;
}

void RunReport::steps_ended() {
  rss_peak_in_steps_ = peak_resident_bytes();
  nvme_.steps_ended();
}

void RunReport::finish(int signal, std::uint64_t state_hash, const std::vector<RankRecord>& ranks) {
  note_times();
  const Summary result = summary(state_hash, ranks);
  const std::vector<OutputFile> files = write_files(result);
  if (signal != 0) print(fmt::format("ended by signal {} after step {}\n", signal, steps_before_ + steps_));
  print(closing_text(result, files));
}

}  // namespace spillway::app
