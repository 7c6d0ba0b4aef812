// spillway train
#include <algorithm>
#include <cstdio>

#include "app/commands.h"
#include "app/interrupt.h"
#include "app/outputs.h"
#include "app/run_report.h"
#include "app/setup.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "data/eval_windows.h"
#include "data/sampler.h"
#include "data/token_data.h"
#include "data/unigram.h"
#include "memory/process_memory.h"
#include "runtime/engine.h"
#include "spillway/error.h"

namespace spillway::app {

namespace {

double evaluate(Engine& engine, EvalWindows& windows, std::int64_t batch, std::int64_t most_batches, std::int64_t& targets) {
  windows.rewind();
  double loss = 0.0;
  targets = 0;
  for (std::int64_t b = 0; b < most_batches; ++b) {
    const std::int64_t count = windows.next(batch, engine.tokens(0), engine.targets(0));
    if (count == 0) break;
    loss += engine.evaluate();
    targets += count;
  }
  return loss / static_cast<double>(std::max<std::int64_t>(1, targets));
}

class Training {
 public:
  explicit Training(const TrainOptions& options);
  int run();

 private:
  void take_step();
  void evaluate_now();
  bool evaluation_due(std::int64_t step) const {
    return windows_ && (step == options_.run.steps || (options_.eval_every > 0 && step % options_.eval_every == 0));
  }

  TrainOptions options_;
  Outputs outputs_;
  Setup setup_;
  TokenData data_;
  std::unique_ptr<TokenData> eval_data_;
  std::unique_ptr<EvalWindows> windows_;
  Sampler sampler_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RunReport> report_;
  std::int64_t step_ = 0;
};

Training::Training(const TrainOptions& options)
    : options_(options),
      outputs_(options_),
      setup_(prepare(options.run)),
      data_(options.run.data, setup_.spec.vocabulary),
      sampler_(data_, {setup_.request.shape.time, setup_.config.train_batch_size, options.seed, 0, 1}) {
  if (!options.eval_data.empty()) {
    eval_data_ = std::make_unique<TokenData>(options.eval_data, setup_.spec.vocabulary);
    windows_ = std::make_unique<EvalWindows>(*eval_data_, setup_.request.shape.time);
  }
  Plan plan = plan_for_machine(setup_.request);
  report_ = std::make_unique<RunReport>(options_, setup_.config, setup_.spec, unigram_entropy(data_, setup_.spec.vocabulary));
  report_->show_plan(plan);
  EngineOptions engine_options;
  engine_options.seed = options.seed;
  engine_ = std::make_unique<Engine>(setup_.config, std::move(setup_.layers), std::move(plan), std::move(setup_.device), setup_.rates, engine_options);
  report_->start(*engine_);
  outputs_.keep();
}

void Training::take_step() {
  const auto before = report_->now();
  for (std::int64_t m = 0; m < setup_.config.accumulation_steps; ++m) {
    sampler_.next(setup_.config.micro_batch_size, engine_->tokens(m), engine_->targets(m));
  }
  const double data_ms = report_->ms_since(before);
  report_->step(engine_->step(), data_ms);
  ++step_;
}

void Training::evaluate_now() {
  const auto before = report_->now();
  std::int64_t targets = 0;
  const double loss = evaluate(*engine_, *windows_, setup_.config.micro_batch_size, options_.eval_batches, targets);
  report_->evaluation(step_, loss, targets, report_->ms_since(before));
}

int Training::run() {
  watch_for_interrupt();
  while (step_ < options_.run.steps && interrupted() == 0) {
    take_step();
    if (evaluation_due(step_) && interrupted() == 0) evaluate_now();
  }
  engine_->drain();
  report_->finish(interrupted());
  return interrupted() == 0 ? 0 : 128 + interrupted();
}

}  // namespace

int train(const TrainOptions& options) { return Training(options).run(); }

}  // namespace spillway::app
