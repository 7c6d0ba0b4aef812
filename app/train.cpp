// spillway train
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "app/checkpoints.h"
#include "app/commands.h"
#include "app/interrupt.h"
#include "app/job.h"
#include "app/outputs.h"
#include "app/run_report.h"
#include "app/same_start.h"
#include "app/setup.h"
#include "app/snapshot_budget.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/eval_windows.h"
#include "data/sampler.h"
#include "data/token_data.h"
#include "data/unigram.h"
#include "memory/process_memory.h"
#include "report/rank_record.h"
#include "runtime/engine.h"
#include "spillway/error.h"

namespace spillway::app {

namespace {

// Beside the bits of the signals: a save has failed, and the run is to end for it.
constexpr std::uint64_t kSaveFailed = 8;

class Training {
 public:
  Training(const TrainOptions& options, Job& job);
  int run();

 private:
  void open_data();
  void open_checkpoint();
  SampleCursor first_sample() const;
  void make_engine(Plan plan);
  void verify_resumed();
  bool nothing_left() const { return resumed_ && step_ == options_.run.steps; }
  void take_step();
  void save_after_step();
  void save_at_end();
  void settle(const std::optional<checkpoint::SaveResult>& result);
  void evaluate_now();
  double evaluate(std::int64_t& targets);
  checkpoint::RunState run_state() const;
  std::vector<RankRecord> rank_records();
  bool stops_for_save() const { return !save_error_.empty() && options_.on_save_error == "stop"; }
  bool evaluation_due(std::int64_t step) const {
    return windows_ && (step == options_.run.steps || (options_.eval_every > 0 && step % options_.eval_every == 0));
  }

  TrainOptions options_;
  Job& job_;
  std::optional<Outputs> outputs_;  // rank 0
  Setup setup_;
  std::vector<checkpoint::TensorInfo> tensors_;
  std::optional<checkpoint::Reader> resumed_;
  std::optional<TokenData> data_, eval_data_;
  std::optional<EvalWindows> windows_;
  std::optional<Sampler> sampler_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RunReport> report_;  // rank 0
  std::optional<Checkpoints> checkpoints_;  // with --out
  std::int64_t step_ = 0;
  std::uint64_t flags_ = 0;       // of all ranks, at the last gate
  std::string save_error_;        // of the last save, if it failed
};

Training::Training(const TrainOptions& options, Job& job) : options_(options), job_(job) {
  job_.agree([&] {
    if (job_.leads()) outputs_.emplace(options_);
    setup_ = prepare(options_.run, job_, options_.save_every > 0);
    tensors_ = tensors_of(setup_.layers);
  });
  require_same_start(job_, options, setup_.config);
  link_devices(job_, setup_);
  agree_on_budgets(job_, setup_);
  measure_rates(job_, setup_);
  job_.agree([&] { open_data(); });
  open_checkpoint();
  if (nothing_left()) return;
  std::optional<Plan> plan;
  job_.agree([&] {
    sampler_.emplace(*data_, SamplerOptions{setup_.request.shape.time, setup_.config.train_batch_size, options_.seed, job_.rank(), job_.size()}, first_sample());
    plan = plan_for_machine(setup_, job_.local_size());
    const bool open = options_.save_every > 0 && !options_.out.empty() && !setup_.config.spillway.checkpoint_memory;
    if (open) plan = with_snapshot_memory(std::move(*plan), setup_, options_.out, job_.local_size());
  });
  if (job_.leads()) {
    report_ = std::make_unique<RunReport>(options_, setup_.config, setup_.spec, unigram_entropy(*data_, setup_.spec.vocabulary));
    report_->show_plan(*plan);
  }
  make_engine(std::move(*plan));
  if (outputs_) outputs_->keep();
}

void Training::open_data() {
  data_.emplace(options_.run.data, setup_.spec.vocabulary);
  if (options_.eval_data.empty()) return;
  eval_data_.emplace(options_.eval_data, setup_.spec.vocabulary);
  windows_.emplace(*eval_data_, setup_.request.shape.time, job_.rank(), job_.size());
}

void Training::open_checkpoint() {
  std::string folder;
  job_.agree([&] {
    if (job_.leads()) folder = checkpoint_to_resume(options_);
  });
  folder = job_.of_leader(folder);
  if (folder.empty()) return;
  job_.agree([&] {
    resumed_.emplace(folder);
    resumed_->check_model(setup_.spec, setup_.config.dtype);
    resumed_->check_optimizer(setup_.config.optimizer.state);
    const checkpoint::RunState& run = resumed_->manifest().run;
    options_.seed = run.seed;
    step_ = run.step;
    if (step_ > options_.run.steps) {
      throw ConfigError(fmt::format("--steps {} is less than the {} steps that '{}' has behind it; --steps counts from the very first one", options_.run.steps,
                                    step_, folder));
    }
  });
}

// Where the data goes on. A position means something only in the data, and for the samples, it was saved with.
SampleCursor Training::first_sample() const {
  if (!resumed_) return {};
  const checkpoint::RunState& run = resumed_->manifest().run;
  const bool same = run.data == data_->description() && run.sequence_length == setup_.request.shape.time;
  if (same) return run.cursor;
  if (job_.leads()) {
    log_warning(fmt::format("the checkpoint was made with {} at sequence length {}, this run has {} at {}: the data starts at its beginning", run.data,
                            run.sequence_length, data_->description(), setup_.request.shape.time));
  }
  return {};
}

void Training::make_engine(Plan plan) {
  EngineOptions options;
  options.seed = options_.seed;
  options.world = &job_.world();
  options.device_world = setup_.device_world.get();
  options.flags = [this] { return received_signals() | (stops_for_save() ? kSaveFailed : 0); };
  if (resumed_) {
    const checkpoint::RunState& run = resumed_->manifest().run;
    options.source = &*resumed_;
    options.gate = {run.loss_scaler, run.applied_steps, run.skipped_steps};
  }
  engine_ = std::make_unique<Engine>(setup_.config, std::move(setup_.layers), std::move(plan), std::move(setup_.device), setup_.rates, options);
  if (resumed_) verify_resumed();
  if (!options_.out.empty()) checkpoints_.emplace(options_, job_.world(), *engine_, setup_.config, setup_.spec, tensors_);
  if (report_) report_->start(*engine_, step_);
}

// What was loaded is what was saved, unless another set of parameters is trained now.
void Training::verify_resumed() {
  const checkpoint::Manifest& manifest = resumed_->manifest();
  const std::uint64_t hash = engine_->state_hash();
  const bool same_set = std::equal(tensors_.begin(), tensors_.end(), manifest.tensors.begin(), manifest.tensors.end(),
                                   [](const checkpoint::TensorInfo& a, const checkpoint::TensorEntry& b) { return a.name == b.name && a.frozen == b.frozen; });
  if (same_set && hash != manifest.state_hash) {
    throw IoError(fmt::format("[checkpoint] resume from '{}': the state loaded has the hash {}, the one saved {}; memory or disk failed on the way: "
                              "try again; spillway inspect tells whether it is the disk",
                              resumed_->folder(), hex64(hash), hex64(manifest.state_hash)));
  }
  if (report_) report_->resumed(resumed_->folder(), step_, hash, manifest.run.world_size);
}

checkpoint::RunState Training::run_state() const {
  checkpoint::RunState run;
  const GateState gate = engine_->gate_state();
  run.step = step_;
  run.applied_steps = gate.applied_steps;
  run.skipped_steps = gate.skipped_steps;
  run.loss_scaler = gate.scaler;
  run.seed = options_.seed;
  run.cursor = sampler_->cursor();
  run.global_batch = setup_.config.train_batch_size;
  run.sequence_length = setup_.request.shape.time;
  run.data = data_->description();
  run.config_json = setup_.config.effective_json;
  run.world_size = job_.size();
  run.zero_stage = setup_.config.zero_stage;
  run.spillway_version = version();
  return run;
}

void Training::take_step() {
  const auto before = RunReport::Clock::now();
  for (std::int64_t m = 0; m < setup_.config.accumulation_steps; ++m) {
    sampler_->next(setup_.config.micro_batch_size, engine_->tokens(m), engine_->targets(m));
  }
  const double data_ms = std::chrono::duration<double, std::milli>(RunReport::Clock::now() - before).count();
  const StepResult result = engine_->step();
  flags_ = result.flags;
  ++step_;
  if (report_) report_->step(result, data_ms);
  const std::int64_t every = setup_.config.spillway.hash_every;
  if (every > 0 && step_ % every == 0) engine_->compare_ranks();
}

// All ranks have seen the same flags at the gate, and so do the same.
void Training::save_after_step() {
  if (!checkpoints_) {
    if (flags_ & kSaveRequest) {
      clear_save_request();
      if (report_) log_warning("a checkpoint was asked for, but there is no --out to write it to");
    }
    return;
  }
  settle(checkpoints_->poll());
  const bool asked = (flags_ & kSaveRequest) != 0;
  if (asked) clear_save_request();
  const bool last = step_ == options_.run.steps || ending_signal(flags_) != 0 || (flags_ & kSaveFailed) != 0;
  if (last || !(asked || checkpoints_->due(step_))) return;
  settle(checkpoints_->finish());
  if (stops_for_save()) return;  // all ranks know of the failure now, though the gate does not yet
  if (options_.save_every > 0) {
    checkpoints_->begin(run_state());
  } else {
    settle(checkpoints_->save_now(run_state()));
  }
}

// The last state is saved however the run ends, unless a save has just failed for good.
void Training::save_at_end() {
  if (!checkpoints_) return;
  settle(checkpoints_->finish());
  if (flags_ & kSaveFailed) return;
  const bool resumed_here = resumed_ && resumed_->manifest().run.step == step_;
  if (checkpoints_->last_begun() != step_ && !resumed_here && step_ > 0) settle(checkpoints_->save_now(run_state()));
}

void Training::settle(const std::optional<checkpoint::SaveResult>& result) {
  if (!result) return;
  if (!result->ok()) save_error_ = result->error;
  if (result->ok()) save_error_.clear();
  if (report_) report_->saved(*result, options_.on_save_error == "continue");
}

double Training::evaluate(std::int64_t& targets) {
  windows_->rewind();
  double loss = 0.0;
  targets = 0;
  const std::int64_t most = (options_.eval_batches + job_.size() - 1) / job_.size();
  for (std::int64_t b = 0; b < most && !windows_->at_end(); ++b) {
    targets += windows_->next(setup_.config.micro_batch_size, engine_->tokens(0), engine_->targets(0));
    loss += engine_->evaluate();
  }
  targets = job_.sum(targets);
  return job_.sum(loss) / static_cast<double>(std::max<std::int64_t>(1, targets));
}

void Training::evaluate_now() {
  const auto before = RunReport::Clock::now();
  std::int64_t targets = 0;
  const double loss = evaluate(targets);
  if (report_) report_->evaluation(step_, loss, targets, report_->ms_since(before));
}

std::vector<RankRecord> Training::rank_records() {
  std::vector<RankRecord> records;
  const RankRecord mine{job_.rank(), job_.world().host(), peaks_of(*engine_), planned_peaks(engine_->plan()), peak_resident_bytes(), engine_->sent_bytes()};
  for (const std::string& text : job_.exchange(to_text(mine))) records.push_back(rank_record_of(text));
  return records;
}

int Training::run() {
  if (nothing_left()) {
    if (job_.leads()) {
      fmt::print("nothing left to do: '{}' is where {} steps end, state {}; a larger --steps goes on from there\n", resumed_->folder(), step_,
                 hex64(resumed_->manifest().state_hash));
    }
    return 0;
  }
  while (step_ < options_.run.steps && ending_signal(flags_) == 0 && (flags_ & kSaveFailed) == 0) {
    take_step();
    save_after_step();
    if (evaluation_due(step_) && ending_signal(flags_) == 0) evaluate_now();
  }
  engine_->drain();
  if (report_) report_->steps_ended();
  save_at_end();
  const std::uint64_t hash = engine_->state_hash();
  const std::vector<RankRecord> ranks = rank_records();
  const int signal = ending_signal(flags_);
  // All ranks have the same error of a save.
  job_.agree([&] {
    if (report_) report_->finish(signal, hash, ranks);
    if (!save_error_.empty()) throw IoError(save_error_);
  });
  return signal == 0 ? 0 : 128 + signal;
}

// Needed to join the others. What may be wrong with the file is said when all are there.
double comm_timeout(const RunOptions& options) {
  try {
    return load_config(options.config, {launched_ranks(), options.steps}).spillway.comm_timeout_s;
  } catch (const Error&) {
    return WorldOptions{}.timeout_s;
  }
}

}  // namespace

int train(const TrainOptions& options) {
  Job job({comm_timeout(options.run)});
  watch_for_signals();
  try {
    return Training(options, job).run();
  } catch (const Silent&) {
    throw;
  } catch (const std::exception& error) {
    if (job.end_with(error)) throw Silent{exit_status(error)};
    throw;
  }
}

}  // namespace spillway::app
