// Everything a run tells: the plan before it, a line per step, the files, and the summary at the end.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/nvme_report.h"
#include "app/options.h"
#include "checkpoint/session.h"
#include "report/console.h"
#include "report/loss_curve.h"
#include "report/metrics_writer.h"
#include "report/summary.h"
#include "report/trace_writer.h"
#include "runtime/engine.h"
#include "spillway/config.h"
#include "spillway/model.h"
#include "spillway/plan.h"

namespace spillway::app {

TierBytes peaks_of(const Engine& engine);
TierBytes planned_peaks(const Plan& plan);

class RunReport {
 public:
  using Clock = std::chrono::steady_clock;

  // Borrows what it is given.
  RunReport(const TrainOptions& options, const Config& config, const ModelSpec& spec, double unigram_entropy);

  Clock::time_point now() const { return Clock::now(); }
  double ms_since(Clock::time_point start) const { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

  void show_plan(const Plan& plan) const;

  // Before its first step, with the engine that everything after this is about; borrowed. Opens the files that are
  // written during the run. `steps_before` were taken by the run that this one resumes.
  void start(Engine& engine, std::int64_t steps_before);
  void resumed(const std::string& folder, std::int64_t step, std::uint64_t state_hash, std::int64_t world_size) const;
  void saved(const checkpoint::SaveResult& result, bool goes_on);
  void step(const StepResult& result, double data_ms);
  void evaluation(std::int64_t step, double loss, std::int64_t targets, double ms);

  // The engine is drained, and what comes now is no step.
  void steps_ended();

  // Writes what is written at the end and prints the summary.
  void finish(int signal, std::uint64_t state_hash, const std::vector<RankRecord>& ranks);

 private:
  StepRecord record_of(const StepResult& result, double data_ms);
  StartRecord start_record() const;
  void note_times();
  void note_device_use();
  std::vector<LaneShare> lane_shares();
  std::string breakdown_text() const;
  template <class Record>
  void write_metrics(const Record& record);
  void trace_times(const StepTimes& times);
  void trace_prediction();
  Summary summary(std::uint64_t state_hash, const std::vector<RankRecord>& ranks) const;
  std::vector<OutputFile> write_files(const Summary& summary);
  const Plan& plan() const { return engine_->plan(); }

  const TrainOptions& options_;
  const Config& config_;
  const ModelSpec& spec_;
  Engine* engine_ = nullptr;
  double unigram_entropy_;
  std::int64_t print_every_;
  std::optional<MetricsWriter> metrics_;
  bool metrics_failed_ = false;  // once, and said so
  std::optional<TraceWriter> trace_;
  LossCurve curve_;
  std::vector<double> step_ms_;
  std::int64_t steps_ = 0;
  std::int64_t steps_before_ = 0;
  std::vector<SaveRecord> saves_;
  std::int64_t traced_tasks_ = 0;
  NvmeReport nvme_;
  std::int64_t timed_steps_ = 0;
  std::array<double, kLanes> busy_ms_{};  // sum over timed steps
  std::array<double, kLanes> last_busy_ms_{};
  std::array<double, kTaskKinds> last_kind_ms_{};   // by kind of task, for wall_clock_breakdown
  std::array<double, kLanes> unprinted_busy_ms_{};  // since the last line, of the steps whose times are known
  double unprinted_ms_ = 0.0;                       // and how long those steps took
  std::int64_t trace_origin_ns_ = -1;
  std::vector<double> device_utilization_;  // at the steps, by the driver's account
  std::int64_t device_used_peak_ = 0;
  std::int64_t rss_at_start_ = 0;
  std::int64_t rss_peak_before_ = 0;
  std::int64_t rss_peak_in_steps_ = 0;
  std::optional<double> eval_loss_;
};

}  // namespace spillway::app
