// The training engine: a model under a configuration, laid out by a plan, run step after step.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/gate.h"
#include "spillway/config.h"
#include "spillway/cost.h"
#include "spillway/device.h"
#include "spillway/io_engine.h"
#include "spillway/model.h"
#include "spillway/plan.h"
#include "spillway/swap_store.h"

namespace spillway {

struct EngineOptions {
  std::uint64_t seed = 1234;
  // Run two steps that change nothing before the first: in one every page is touched and every thread
  // starts, in the other each task's time is measured for the prediction.
  bool rehearse = true;
  ExecutorOptions executor;
  // SwapStoreOptions::make_engine: the fault tests put failing engines here.
  std::function<std::unique_ptr<IoEngine>(const IoEngineOptions&)> make_io_engine = {};
};

struct StepResult {
  std::int64_t step = 0;         // 1 for the first, counting skipped ones
  GateVerdict verdict;
  std::string non_finite_tensor;  // the first one, if the step was skipped for it
  double step_ms = 0.0;          // from the gate of the step before to this one's
};

// When a finished step's tasks ran.
struct StepTimes {
  std::span<const TaskTime> tasks;            // by index into Plan::step.tasks, device clock
  std::array<double, kLanes> busy_ms{};
};

class Engine {
 public:
  // Takes the plan of make_plan() for these layers and a device, allocates every byte of every tier, and
  // initialises weights and state. Throws MemoryError or IoError; nothing is left behind.
  Engine(const Config& config, std::vector<std::unique_ptr<Layer>> layers, Plan plan, std::unique_ptr<Device> device,
         const MachineRates& rates, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The coming step's input: (B, T) token ids, and targets, of each micro-batch. A negative target has no
  // loss. To be filled before step(); not touched by the engine afterwards.
  std::span<std::int32_t> tokens(std::int64_t micro_batch);
  std::span<std::int32_t> targets(std::int64_t micro_batch);

  // Runs forward and backward of all micro-batches and starts the update, which may still be going on
  // when this returns: the next step waits for it where it must. Throws the first error of any task.
  StepResult step();

  // Forward only, on tokens(0) and targets(0). Returns the sum of the losses of all targets.
  double evaluate();

  // Blocks until nothing is going on. Throws the first error of any task.
  void drain();

  // Of the last step if drained, else of the step before it, waiting for its last transfers; nothing if
  // there is none. Valid until the next step().
  std::optional<StepTimes> last_times();

  // Drains, then hashes the state: see hash_state().
  std::uint64_t state_hash();

  const Device& device() const;
  const Plan& plan() const;
  const Simulation& prediction() const;
  const MachineRates& rates() const;
  // The swap store, if the plan has anything on NVMe.
  SwapStore* store();
  std::int64_t applied_steps() const;
  std::int64_t skipped_steps() const;
  // Highest byte used on the tier so far, in whole units of alignment_of(tier): what TierUse::peak foretold.
  std::int64_t measured_peak(Tier tier) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway
