#include "support/training.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string_view>
#include <thread>

#include "base/parallel.h"
#include "spillway/ops.h"
#include "support/thread_world.h"

namespace spillway::testing {

bool on_cuda() {
  const char* device = std::getenv("SPILLWAY_TEST_DEVICE");
  return device != nullptr && std::string_view(device) == "cuda";
}

std::int64_t kept_workspace() { return on_cuda() ? cuda_scratch_sizes().linear_backward(DType::f32, {1, 1, 1}) : 0; }

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

namespace {

bool takes_cuda(const RunSetup& setup) { return on_cuda() && !setup.on_host; }

std::unique_ptr<Device> open_device(const RunSetup& setup) {
  if (takes_cuda(setup)) return make_cuda_device(setup.world == nullptr ? 0 : setup.world->rank());
  HostDeviceOptions options;
  options.threads = setup.config.spillway.threads;
  options.chaos_max_delay_us = setup.chaos_us;
  options.chaos_seed = setup.chaos_seed;
  return make_host_device(options);
}

PlanRequest request_of(const RunSetup& setup, const std::vector<std::unique_ptr<Layer>>& layers) {
  PlanRequest request = make_request(setup.config, setup.spec, layers, setup.time, takes_cuda(setup) ? cuda_scratch_sizes() : host_scratch_sizes());
  if (setup.world != nullptr) {
    request.rank = setup.world->rank();
    request.world_size = setup.world->size();
  }
  if (setup.edit_request) setup.edit_request(request);
  return request;
}

}  // namespace

Plan plan_of(const RunSetup& setup) {
  const std::vector<std::unique_ptr<Layer>> layers = make_layers(setup.spec, setup.frozen);
  return build_plan(request_of(setup, layers));
}

std::unique_ptr<Engine> make_engine(const RunSetup& setup) {
  std::vector<std::unique_ptr<Layer>> layers = make_layers(setup.spec, setup.frozen);
  set_parallel_threads(setup.config.spillway.threads);
  std::unique_ptr<Device> device = open_device(setup);
  Plan plan = make_plan(request_of(setup, layers));
  if (setup.edit_plan) setup.edit_plan(plan);
  EngineOptions options;
  options.seed = kSeed;
  options.source = setup.source;
  options.gate = setup.gate.value_or(Gate(setup.config).state());
  options.rehearse = setup.rehearse;
  options.executor.chaos_max_delay_us = setup.chaos_us;
  options.executor.chaos_seed = setup.chaos_seed;
  options.make_io_engine = setup.make_io_engine;
  options.world = setup.world;
  options.device_world = setup.device_world;
  return std::make_unique<Engine>(setup.config, std::move(layers), std::move(plan), std::move(device), MachineRates{}, options);
}

void fill_batch(Engine& engine, const RunSetup& setup, int step) {
  const std::int64_t batch = setup.config.micro_batch_size;
  const PlanRequest& request = engine.plan().request;
  const std::int64_t of_rank = batch * request.accumulation_steps;
  for (std::int64_t m = 0; m < setup.config.accumulation_steps; ++m) {
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t sample = (step * request.world_size + request.rank) * of_rank + m * batch + b;
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
  if (setup.after_steps) setup.after_steps(*engine);
  result.state_hash = engine->state_hash();
  result.sent_bytes = engine->sent_bytes();
  for (int t = 0; t < kTiers; ++t) {
    result.peak[static_cast<std::size_t>(t)] = engine->measured_peak(static_cast<Tier>(t));
    result.planned[static_cast<std::size_t>(t)] = engine->plan().tiers[static_cast<std::size_t>(t)].peak;
  }
  return result;
}

void for_each_rank(const RunSetup& setup, int world, const std::function<void(RunSetup&)>& act, double timeout_s) {
  std::vector<std::unique_ptr<World>> worlds = make_thread_worlds(world, {timeout_s});
  std::vector<std::exception_ptr> errors(worlds.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < worlds.size(); ++r) {
    threads.emplace_back([&, r] {
      RunSetup mine = setup;
      mine.world = worlds[r].get();
      mine.config.world_size = world;
      mine.config.train_batch_size = setup.config.micro_batch_size * setup.config.accumulation_steps * world;
      try {
        std::unique_ptr<World> device_world;
        if (takes_cuda(mine)) {
          const std::unique_ptr<Device> device = open_device(mine);
          device_world = make_device_world(*mine.world, *device, {timeout_s});
        }
        mine.device_world = device_world.get();
        act(mine);
      } catch (const std::exception& error) {
        errors[r] = std::current_exception();
        worlds[r]->fail(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

std::vector<RunResult> train_ranks(const RunSetup& setup, int world) {
  if (world == 1) return {train(setup)};
  std::vector<RunResult> results(static_cast<std::size_t>(world));
  for_each_rank(setup, world, [&](RunSetup& mine) { results[static_cast<std::size_t>(mine.world->rank())] = train(mine); });
  return results;
}

}  // namespace spillway::testing
