#include "runtime/engine.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "base/log.h"
#include "runtime/state_access.h"
#include "runtime/task_actions.h"
#include "spillway/ops.h"

namespace spillway {

namespace {

// A rehearsal longer than this is not worth its prediction.
constexpr double kLongestRehearsal_s = 20.0;
// The first run touches every page and starts every thread, which no later one does: the last is measured.
constexpr std::uint32_t kRehearsals = 2;

std::unique_ptr<SwapStore> open_store(const Config& config, const Plan& plan, const EngineOptions& engine_options) {
  const std::int64_t bytes = plan.tiers[static_cast<std::size_t>(Tier::nvme)].peak;
  if (bytes == 0) return nullptr;
  SwapStoreOptions options;
  options.folder = config.offload_optimizer.nvme_path.empty() ? config.offload_param.nvme_path : config.offload_optimizer.nvme_path;
  options.bytes = bytes;
  options.engine.name = config.spillway.io_engine;
  options.verify = config.spillway.verify;
  options.make_engine = engine_options.make_io_engine;
  for (const ExtentPlan& extent : plan.extents) {
    options.extents.push_back({extent.name, plan.buffers[static_cast<std::size_t>(extent.buffer)].offset + extent.begin, extent.bytes});
  }
  return make_swap_store(std::move(options));
}

int find_task(const Program& program, TaskKind kind) {
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    if (program.tasks[i].kind == kind) return static_cast<int>(i);
  }
  return -1;
}

// The rehearsal changes nothing, so these are not measured by it.
bool rehearsed(TaskKind kind) {
  return kind != TaskKind::update_tile && kind != TaskKind::write_tile && kind != TaskKind::publish &&
         kind != TaskKind::write_weights && kind != TaskKind::gate;
}

// Puts the rehearsal's times in place of the estimates. Tasks that do the same amount of the same work get
// the median of their times: a disturbance that fell on one of them is no property of the step.
void take_over_rehearsed(const Program& program, std::span<const TaskTime> times, std::vector<double>& seconds) {
  std::map<std::tuple<TaskKind, Lane, double, std::int64_t>, std::vector<std::size_t>> alike;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const Task& task = program.tasks[i];
    if (rehearsed(task.kind)) alike[{task.kind, task.lane, task.flops, task.bytes}].push_back(i);
  }
  const auto duration = [&](std::size_t i) { return times[i].end_ns - times[i].start_ns; };
  for (auto& [work, tasks] : alike) {
    const auto middle = tasks.begin() + static_cast<std::ptrdiff_t>(tasks.size() / 2);
    std::nth_element(tasks.begin(), middle, tasks.end(), [&](std::size_t a, std::size_t b) { return duration(a) < duration(b); });
    const double median = static_cast<double>(duration(*middle)) * 1e-9;
    for (const std::size_t i : tasks) seconds[i] = median;
  }
}

// An arena is exactly its budget if one was given, else what the plan needs.
std::int64_t arena_bytes(const Plan& plan, Tier tier) {
  const TierUse& use = plan.tiers[static_cast<std::size_t>(tier)];
  return tier == Tier::device ? use.budget.value_or(use.peak) : use.peak;
}

}  // namespace

class Engine::Impl {
 public:
  Impl(const Config& config, std::vector<std::unique_ptr<Layer>> layers, Plan plan, std::unique_ptr<Device> device,
       const MachineRates& rates, const EngineOptions& options)
      : config(config),
        layers(std::move(layers)),
        plan(std::move(plan)),
        device(std::move(device)),
        memory(this->plan, this->device->allocate_arena(arena_bytes(this->plan, Tier::device)),
               this->device->allocate_pinned(arena_bytes(this->plan, Tier::host))),
        store(open_store(this->config, this->plan, options)),
        ops(this->device->make_ops(this->config.dtype)),
        gate(this->config),
        actions(this->plan, memory, this->layers, *this->device, *ops, gate),
        state(this->plan, memory, *this->device, store.get()),
        rates(rates),
        gate_task(find_task(this->plan.step, TaskKind::gate)),
        loss_task(find_task(this->plan.evaluation, TaskKind::drain_statistics)) {
    const std::int64_t before = this->device->now_ns();
    initialise_state(this->plan, this->layers, options.seed, state);
    measure_initial_writes(this->device->now_ns() - before);
    executor = std::make_unique<Executor>(this->plan, *this->device, store.get(), actions, options.executor);
    predict(options.rehearse);
  }

  std::span<std::int32_t> batch(std::int64_t micro_batch, bool targets) {
    const std::int64_t n = plan.request.shape.batch * plan.request.shape.time;
    auto* base = reinterpret_cast<std::int32_t*>(memory.at(plan.batch_buffer));
    return {base + (2 * micro_batch + (targets ? 1 : 0)) * n, static_cast<std::size_t>(n)};
  }

  std::int64_t counted_tokens() {
    std::int64_t counted = 0;
    for (std::int64_t m = 0; m < plan.request.accumulation_steps; ++m) {
      const auto targets = batch(m, true);
      counted += std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t >= 0; });
    }
    return std::max<std::int64_t>(1, counted);
  }

  std::uint32_t run_step(bool rehearsal) {
    actions.begin_step(counted_tokens(), rehearsal);
    drained = false;
    const std::uint32_t run = executor->submit(ProgramId::step);
    executor->wait(ProgramId::step, run, gate_task);
    return run;
  }

  void measure_initial_writes(std::int64_t elapsed_ns);
  void predict(bool rehearse);
  void drain();

  Config config;
  std::vector<std::unique_ptr<Layer>> layers;
  Plan plan;
  std::unique_ptr<Device> device;
  PlanMemory memory;
  std::unique_ptr<SwapStore> store;
  std::unique_ptr<Ops> ops;
  Gate gate;
  PlanActions actions;
  StateAccess state;
  MachineRates rates;
  int gate_task;
  int loss_task;
  std::unique_ptr<Executor> executor;
  Simulation prediction;
  std::uint32_t last_run = 0;       // of the step program
  std::uint32_t rehearsals = 0;     // runs that were not steps
  bool drained = true;
  std::int64_t last_gate_ns = 0;
};

// Initialisation has just written every tile: the rate it reached is this disk's, today.
void Engine::Impl::measure_initial_writes(std::int64_t elapsed_ns) {
  if (store == nullptr || elapsed_ns <= 0) return;
  const double rate = static_cast<double>(store->counters().write_bytes) * 1e9 / static_cast<double>(elapsed_ns);
  rates.nvme_write_bytes = std::max(rates.nvme_write_bytes, rate);
}

void Engine::Impl::predict(bool rehearse) {
  std::vector<double> seconds = task_seconds(plan.step, rates);
  prediction = simulate(plan.step, seconds, rates);
  if (!rehearse) return;
  if (kRehearsals * prediction.step_s > kLongestRehearsal_s) {
    log_info(fmt::format("no rehearsal: a step is predicted to take {:.0f} s; the prediction rests on measured rates alone", prediction.step_s));
    return;
  }
  for (std::int64_t m = 0; m < plan.request.accumulation_steps; ++m) {
    for (std::int32_t& token : batch(m, false)) token = 0;
    for (std::int32_t& target : batch(m, true)) target = 0;
  }
  for (; rehearsals < kRehearsals; ++rehearsals) last_run = run_step(true);
  drain();
  take_over_rehearsed(plan.step, executor->times(ProgramId::step, last_run), seconds);
  prediction = simulate(plan.step, seconds, rates);
}

void Engine::Impl::drain() {
  executor->drain();
  drained = true;
}

Engine::Engine(const Config& config, std::vector<std::unique_ptr<Layer>> layers, Plan plan, std::unique_ptr<Device> device,
               const MachineRates& rates, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(config, std::move(layers), std::move(plan), std::move(device), rates, options)) {}
Engine::~Engine() = default;

std::span<std::int32_t> Engine::tokens(std::int64_t micro_batch) { return impl_->batch(micro_batch, false); }
std::span<std::int32_t> Engine::targets(std::int64_t micro_batch) { return impl_->batch(micro_batch, true); }

StepResult Engine::step() {
  Impl& self = *impl_;
  const std::int64_t submitted_ns = self.device->now_ns();
  self.last_run = self.run_step(false);
  StepResult result;
  result.step = self.last_run - self.rehearsals;
  result.verdict = self.actions.verdict();
  if (result.verdict.skip) result.non_finite_tensor = self.actions.first_bad_tensor();
  const std::int64_t since = self.last_gate_ns > 0 ? self.last_gate_ns : submitted_ns;
  result.step_ms = static_cast<double>(self.actions.gate_ns() - since) * 1e-6;
  self.last_gate_ns = self.actions.gate_ns();
  return result;
}

double Engine::evaluate() {
  Impl& self = *impl_;
  self.drain();
  const std::uint32_t run = self.executor->submit(ProgramId::evaluation);
  self.executor->wait(ProgramId::evaluation, run, self.loss_task);
  self.drain();
  self.last_gate_ns = 0;
  return *reinterpret_cast<const double*>(self.memory.at(self.plan.statistics_buffer));
}

void Engine::drain() { impl_->drain(); }

std::optional<StepTimes> Engine::last_times() {
  Impl& self = *impl_;
  const std::uint32_t run = self.drained ? self.last_run : self.last_run - 1;
  if (run <= self.rehearsals) return std::nullopt;
  StepTimes times;
  times.tasks = self.executor->times(ProgramId::step, run);
  for (std::size_t i = 0; i < times.tasks.size(); ++i) {
    times.busy_ms[static_cast<std::size_t>(self.plan.step.tasks[i].lane)] += static_cast<double>(times.tasks[i].end_ns - times.tasks[i].start_ns) * 1e-6;
  }
  return times;
}

std::uint64_t Engine::state_hash() {
  impl_->drain();
  return hash_state(impl_->plan, impl_->layers, impl_->gate.applied_steps(), impl_->state);
}

const Device& Engine::device() const { return *impl_->device; }
const Plan& Engine::plan() const { return impl_->plan; }
const Simulation& Engine::prediction() const { return impl_->prediction; }
const MachineRates& Engine::rates() const { return impl_->rates; }
SwapStore* Engine::store() { return impl_->store.get(); }
std::int64_t Engine::applied_steps() const { return impl_->gate.applied_steps(); }
std::int64_t Engine::skipped_steps() const { return impl_->gate.skipped_steps(); }
std::int64_t Engine::measured_peak(Tier tier) const { return impl_->memory.high_water(tier); }

}  // namespace spillway
