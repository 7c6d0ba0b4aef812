#include "support/step_engine.h"

#include <algorithm>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "base/parallel.h"
#include "runtime/measure.h"
#include "spillway/ops.h"

namespace spillway::bench {

namespace {

// Tile size, prefetch depth and checksums are left at their defaults.
std::string config_of(const StepSetup& setup) {
  const auto target = [&] {
    if (setup.offload == "none") return std::string(R"({"device": "none"})");
    if (setup.offload == "cpu") return std::string(R"({"device": "cpu"})");
    return fmt::format(R"({{"device": "nvme", "nvme_path": "{}"}})", setup.folder);
  }();
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": {}, "gradient_accumulation_steps": 1, "bf16": {{"enabled": true}}, )"
      R"("gradient_clipping": 1.0, "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3, "weight_decay": 0.1}}}}, )"
      R"("zero_optimization": {{"stage": 3, "stage3_param_persistence_threshold": 0, "offload_param": {}, )"
      R"("offload_optimizer": {}}}{}}})",
      setup.micro_batch, setup.weights_on_device ? R"({"device": "none"})" : target, target, setup.aio.empty() ? "" : ", \"aio\": " + setup.aio);
}

}  // namespace

StepEngine::StepEngine(const StepSetup& setup) : config_json_(config_of(setup)), config_(parse_config(config_json_, "benchmark", {})) {
  const ModelSpec& spec = setup.model;
  vocabulary_ = spec.vocabulary;
  std::vector<std::unique_ptr<Layer>> layers = make_layers(spec);
  set_parallel_threads(config_.spillway.threads);
  std::unique_ptr<Device> device = make_host_device({});
  const PlanRequest request = make_request(config_, spec, layers, setup.time, host_scratch_sizes());
  std::vector<std::string> folders;
  if (setup.offload == "nvme") folders.push_back(setup.folder);
  const MachineRates rates = measure_rates(*make_host_device({}), spec, request.shape, config_.dtype, request.state, folders,
                                           {.engine = {.name = config_.spillway.io_engine}});
  engine_ = std::make_unique<Engine>(config_, std::move(layers), make_plan(request), std::move(device), rates, EngineOptions{});
}

// The same tokens for every placement: engines that ran as many steps must hold the same state.
void StepEngine::fill_batch() {
  std::uint64_t random = ++step_ * 0x9e3779b97f4a7c15ull;
  const auto next = [&] {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<std::int32_t>((random >> 33) % static_cast<std::uint64_t>(vocabulary_));
  };
  for (std::int32_t& token : engine_->tokens(0)) token = next();
  for (std::int32_t& target : engine_->targets(0)) target = next();
}

Turn StepEngine::run(int steps) {
  const auto bytes_so_far = [&] {
    if (engine_->store() == nullptr) return 0.0;
    const SwapCounters counters = engine_->store()->counters();
    return static_cast<double>(counters.read_bytes + counters.write_bytes);
  };
  const double before = bytes_so_far();
  Turn turn;
  for (int i = 0; i <= steps; ++i) {
    fill_batch();
    const double ms = engine_->step().step_ms;
    if (i > 0) turn.step_ms.push_back(ms);
  }
  engine_->drain();
  turn.bytes_per_step = (bytes_so_far() - before) / (steps + 1);
  return turn;
}

StepAlone StepEngine::run_alone() {
  fill_batch();
  engine_->step();
  engine_->drain();
  const std::vector<Task>& tasks = engine_->plan().step.tasks;
  const std::span<const TaskTime> times = engine_->last_times()->tasks;
  std::int64_t start = times[0].start_ns, gate = 0, end = 0, last_write = 0;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    start = std::min(start, times[i].start_ns);
    end = std::max(end, times[i].end_ns);
    if (tasks[i].kind == TaskKind::gate) gate = times[i].end_ns;
    if (tasks[i].kind == TaskKind::write_tile) last_write = std::max(last_write, times[i].end_ns);
  }
  StepAlone alone;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const bool moves = tasks[i].kind == TaskKind::read_tile || tasks[i].kind == TaskKind::write_tile;
    if (moves && times[i].start_ns >= gate) alone.ring_bytes += tasks[i].bytes;
  }
  const auto seconds = [](std::int64_t from, std::int64_t to) { return static_cast<double>(to - from) * 1e-9; };
  alone.step_s = seconds(start, end);
  alone.update_s = seconds(gate, end);
  alone.ring_s = seconds(gate, last_write);
  return alone;
}

std::int64_t StepEngine::parameters() const {
  std::int64_t parameters = 0;
  for (const LayerPlan& layer : engine_->plan().layers) parameters += layer.num_trainable;
  return parameters;
}

}  // namespace spillway::bench
