#include "support/training.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/parallel.h"
#include "spillway/ops.h"

namespace spillway::testing {

ScratchFolder::ScratchFolder() {
  // Beside the test's own executable: a build folder is on a disk, /tmp may not be.
  std::string name = std::filesystem::current_path() / "scratch-XXXXXX";
  path_ = mkdtemp(name.data());
}

ScratchFolder::~ScratchFolder() { std::filesystem::remove_all(path_); }

RunSetup tiny_run() {
  RunSetup setup;
  setup.spec = {"tiny", 3, 32, 2, 64, 32};
  Config& config = setup.config;
  config.micro_batch_size = 2;
  config.accumulation_steps = 1;
  config.train_batch_size = 2;
  config.dtype = DType::bf16;
  config.communication_dtype = DType::bf16;
  config.gradient_clipping = 1.0;
  config.optimizer.learning_rate = 3e-3;
  config.optimizer.weight_decay = 0.1;
  config.zero_stage = 3;
  config.param_persistence_threshold = 0;
  config.spillway.tile_size = 4096;
  return setup;
}

Plan plan_of(const RunSetup& setup) {
  return build_plan(make_request(setup.config, setup.spec, make_layers(setup.spec), setup.time, host_scratch_sizes()));
}

std::unique_ptr<Engine> make_engine(const RunSetup& setup) {
  std::vector<std::unique_ptr<Layer>> layers = make_layers(setup.spec);
  set_parallel_threads(setup.config.spillway.threads);
  HostDeviceOptions device_options;
  device_options.threads = setup.config.spillway.threads;
  device_options.chaos_max_delay_us = setup.chaos_us;
  device_options.chaos_seed = setup.chaos_seed;
  Plan plan = make_plan(make_request(setup.config, setup.spec, layers, setup.time, host_scratch_sizes()));
  if (setup.edit_plan) setup.edit_plan(plan);
  EngineOptions options;
  options.seed = 7;
  options.rehearse = setup.rehearse;
  options.executor.chaos_max_delay_us = setup.chaos_us;
  options.executor.chaos_seed = setup.chaos_seed;
  options.make_io_engine = setup.make_io_engine;
  return std::make_unique<Engine>(setup.config, std::move(layers), std::move(plan), make_host_device(device_options), MachineRates{}, options);
}

void fill_batch(Engine& engine, const RunSetup& setup, int step) {
  const std::int64_t batch = setup.config.micro_batch_size;
  for (std::int64_t m = 0; m < setup.config.accumulation_steps; ++m) {
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t sample = step * setup.config.train_batch_size + m * batch + b;
      std::uint64_t state = static_cast<std::uint64_t>(sample) * 0x9e3779b97f4a7c15ull + 11;
      std::int64_t token = sample % setup.spec.vocabulary;
      for (std::int64_t t = 0; t < setup.time; ++t) {
        engine.tokens(m)[static_cast<std::size_t>(b * setup.time + t)] = static_cast<std::int32_t>(token);
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        // A chain with a preferred successor, so that there is something to learn.
        token = (state >> 61) == 0 ? static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(setup.spec.vocabulary)) : (token * 5 + 3) % setup.spec.vocabulary;
        engine.targets(m)[static_cast<std::size_t>(b * setup.time + t)] = static_cast<std::int32_t>(token);
      }
    }
  }
}

RunResult train(const RunSetup& setup) {
  const std::unique_ptr<Engine> engine = make_engine(setup);
  RunResult result;
  for (int step = 0; step < setup.steps; ++step) {
    fill_batch(*engine, setup, step);
    if (setup.before_step) setup.before_step(*engine, step);
    result.steps.push_back(engine->step());
  }
  result.state_hash = engine->state_hash();
  return result;
}

}  // namespace spillway::testing
