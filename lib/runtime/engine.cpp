#include "plan/host_stretches.h"
#include "runtime/engine.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "runtime/rank_links.h"
#include "runtime/replicas.h"
#include "runtime/snapshot_reader.h"
#include "runtime/state_access.h"
#include "runtime/state_hash.h"
#include "runtime/store_options.h"
#include "runtime/task_actions.h"
#include "runtime/tensor_access.h"
#include "spillway/error.h"
#include "spillway/ops.h"

namespace spillway {

namespace {

// A rehearsal longer than this is not worth its prediction.
constexpr double kLongestRehearsal_s = 20.0;
// The first run touches every page and starts every thread, which no later one does: the last is measured.
constexpr std::uint32_t kRehearsals = 2;

std::unique_ptr<SwapStore> open_store(const Config& config, const Plan& plan, std::span<std::byte> pinned, const EngineOptions& engine_options) {
  std::optional<SwapStoreOptions> options = swap_store_options(config, plan);
  if (!options) return nullptr;
  options->engine.memory = pinned;
  options->make_engine = engine_options.make_io_engine;
  return make_swap_store(std::move(*options));
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
               this->device->allocate_pinned(arena_bytes(this->plan, Tier::host), host_stretches(this->plan))),
        store(open_store(this->config, this->plan, memory.host(), options)),
        ops(this->device->make_ops(this->config.dtype)),
        gate(this->config, options.seed),
        links(options.world == nullptr || this->plan.request.world_size == 1 ? nullptr : std::make_unique<RankLinks>(*options.world, options.device_world, this->plan)),
        snapshots(this->plan, memory, this->layers, *this->device, store.get()),
        actions(this->plan, memory, this->layers, *this->device, *ops, gate, links.get(), &snapshots, options.flags),
        state(this->plan, memory, *this->device, store.get()),
        tensors(this->plan, this->layers, state, links.get()),
        rates(rates),
        gate_task(find_task(this->plan.step, TaskKind::gate)),
        loss_task(find_task(this->plan.evaluation, TaskKind::drain_statistics)) {
    const std::int64_t before = this->device->now_ns();
    SeedSource seeded(this->layers, options.seed);
    initialise_state(this->plan, this->layers, options.source == nullptr ? seeded : *options.source, state);
    if (options.source != nullptr) gate.restore(options.gate);
    steps_before = gate.applied_steps() + gate.skipped_steps();
    measure_initial_writes(this->device->now_ns() - before);
    ExecutorOptions executor_options = options.executor;
    if (links != nullptr) executor_options.on_failure = [this](const std::exception_ptr& failure) { tell_others(failure); };
    executor = std::make_unique<Executor>(this->plan, *this->device, store.get(), actions, executor_options);
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
    return counted;
  }

  std::uint32_t run_step(bool rehearsal) {
    if (links != nullptr) links->world().note_step(steps_before + last_run - rehearsals + 1);
    actions.begin_step(counted_tokens(), std::exchange(sink, nullptr), rehearsal);
    drained = false;
    const std::uint32_t run = executor->submit(ProgramId::step);
    executor->wait(ProgramId::step, run, gate_task);
    return run;
  }

  void tell_others(const std::exception_ptr& failure);
  double slowest_prediction(double seconds);
  std::uint64_t hash_of_items();
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
  std::unique_ptr<RankLinks> links;  // nullptr in a world of one
  SnapshotReader snapshots;
  PlanActions actions;
  StateAccess state;
  TensorAccess tensors;
  MachineRates rates;
  int gate_task;
  int loss_task;
  std::unique_ptr<Executor> executor;
  Simulation prediction;
  std::uint32_t last_run = 0;       // of the step program
  std::uint32_t rehearsals = 0;     // runs that were not steps
  std::int64_t steps_before = 0;    // of the run that is resumed
  SnapshotSink* sink = nullptr;     // of the coming step
  bool drained = true;
  std::int64_t last_gate_ns = 0;
};

// Another rank's failure is known there already.
void Engine::Impl::tell_others(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const CommError&) {
  } catch (const std::exception& error) {
    links->world().fail(error.what());
  }
}

double Engine::Impl::slowest_prediction(double seconds) {
  if (links == nullptr) return seconds;
  std::vector<double> all(static_cast<std::size_t>(plan.request.world_size));
  links->control().exchange(std::as_bytes(std::span(&seconds, 1)), std::as_writable_bytes(std::span(all)));
  return *std::max_element(all.begin(), all.end());
}

std::uint64_t Engine::Impl::hash_of_items() {
  state.forget();
  const std::span<std::byte> memory_of_one{memory.at(plan.maintenance_buffer),
                                           static_cast<std::size_t>(plan.buffers[static_cast<std::size_t>(plan.maintenance_buffer)].bytes)};
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < snapshots.items().size(); ++i) {
    const SnapshotItem& item = snapshots.items()[i];
    const std::span<std::byte> bytes = memory_of_one.first(static_cast<std::size_t>(item.bytes()));
    snapshots.read(i, bytes);
    sum += item_hash(item, plan.request.dtype, bytes);
  }
  return sum;
}

// Initialisation has just written every tile: the rate it reached is this disk's, today.
void Engine::Impl::measure_initial_writes(std::int64_t elapsed_ns) {
  if (store == nullptr || elapsed_ns <= 0) return;
  const double rate = static_cast<double>(store->counters().write_bytes) * 1e9 / static_cast<double>(elapsed_ns);
  rates.nvme_write_bytes = std::max(rates.nvme_write_bytes, rate);
}

void Engine::Impl::predict(bool rehearse) {
  std::vector<double> seconds = task_seconds(plan, plan.step, rates);
  prediction = simulate(plan.step, seconds, rates);
  if (!rehearse) return;
  // All ranks rehearse, or none.
  if (kRehearsals * slowest_prediction(prediction.step_s) > kLongestRehearsal_s) {
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
  result.step = self.steps_before + self.last_run - self.rehearsals;
  result.verdict = self.actions.verdict();
  result.flags = self.actions.flags();
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
  Impl& self = *impl_;
  self.drain();
  std::uint64_t sum = self.hash_of_items();
  if (self.links != nullptr) sum = sum_over_ranks(self.links->control(), sum);
  return combine_state_hash(sum, self.gate.applied_steps());
}

void Engine::compare_ranks() {
  impl_->drain();
  if (impl_->links != nullptr) compare_replicas(impl_->plan, impl_->state, *impl_->links);
}

void Engine::read_tensor(std::string_view name, StateSection section, std::span<float> out) {
  impl_->drain();
  impl_->tensors.read(name, section, out);
}

void Engine::write_tensor(std::string_view name, StateSection section, std::span<const float> values) {
  impl_->drain();
  impl_->tensors.write(name, section, values);
}

void Engine::before_update(std::function<void(GradientAccess&)> hook) { impl_->actions.before_update(std::move(hook)); }

void Engine::corrupt_for_test(int layer) {
  impl_->drain();
  std::byte* weights = impl_->memory.at(impl_->plan.layers[static_cast<std::size_t>(layer)].weights_buffer);
  std::byte* first = impl_->memory.at(impl_->plan.maintenance_buffer);
  impl_->state.forget();
  const std::unique_ptr<Stream> stream = impl_->device->make_stream("corrupt");
  stream->copy(first, weights, 1);
  stream->synchronize();
  *first ^= std::byte{1};
  stream->copy(weights, first, 1);
  stream->synchronize();
}

std::span<const SnapshotItem> Engine::snapshot_items() const { return impl_->snapshots.items(); }

std::span<std::byte> Engine::snapshot_memory() {
  const int planned = impl_->plan.snapshot_buffer;
  const int buffer = planned < 0 ? impl_->plan.maintenance_buffer : planned;
  return {impl_->memory.at(buffer), static_cast<std::size_t>(impl_->plan.buffers[static_cast<std::size_t>(buffer)].bytes)};
}

void Engine::snapshot_in_next_step(SnapshotSink& sink) { impl_->sink = &sink; }

void Engine::snapshot(SnapshotSink& sink) {
  impl_->drain();
  for (std::size_t item = 0; item < impl_->snapshots.items().size(); ++item) impl_->snapshots.copy_out(item, sink);
}

GateState Engine::gate_state() const { return impl_->gate.state(); }

const Device& Engine::device() const { return *impl_->device; }
const Plan& Engine::plan() const { return impl_->plan; }
const Simulation& Engine::prediction() const { return impl_->prediction; }
const MachineRates& Engine::rates() const { return impl_->rates; }
SwapStore* Engine::store() { return impl_->store.get(); }
std::int64_t Engine::applied_steps() const { return impl_->gate.applied_steps(); }
std::int64_t Engine::skipped_steps() const { return impl_->gate.skipped_steps(); }
std::int64_t Engine::sent_bytes() const { return impl_->links == nullptr ? 0 : impl_->links->sent_bytes(); }
std::int64_t Engine::measured_peak(Tier tier) const { return impl_->memory.high_water(tier); }

}  // namespace spillway
