// The training engine: a model under a configuration, laid out by a plan, run step after step.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/executor.h"
#include "runtime/gate.h"
#include "runtime/state_io.h"
#include "spillway/communicator.h"
#include "spillway/config.h"
#include "spillway/cost.h"
#include "spillway/device.h"
#include "spillway/io_engine.h"
#include "spillway/model.h"
#include "spillway/plan.h"
#include "spillway/swap_store.h"

namespace spillway {

class GradientAccess;

struct EngineOptions {
  std::uint64_t seed = 1234;  // of initial values and of stochastic rounding
  // What the run starts from instead of the seed: state and counters of a checkpoint. Borrowed by the constructor.
  StateSource* source = nullptr;
  GateState gate{};             // used with `source`
  // Asked at the gate of each step; what any rank says, all are told (StepResult::flags): the bits mean something to
  // the caller alone. So that ranks can agree, step by step, to stop or to save.
  std::function<std::uint64_t()> flags = {};
  // Of all ranks of the plan; borrowed. nullptr: a world of one.
  World* world = nullptr;
  // The same ranks, for the collectives of the plan, if the device has memory that `world` cannot move
  // (make_device_world()); borrowed. nullptr: `world`.
  World* device_world = nullptr;
  // Run two steps that change nothing before the first: in one every page is touched and every thread
  // starts, in the other each task's time is measured for the prediction.
  bool rehearse = true;
  ExecutorOptions executor;
  // SwapStoreOptions::make_engine: the fault tests put failing engines here.
  std::function<std::unique_ptr<IoEngine>(const IoEngineOptions&)> make_io_engine = {};
};

struct StepResult {
  std::int64_t step = 0;         // 1 for the first, counting skipped ones, and those before a resume
  GateVerdict verdict;
  std::string non_finite_tensor;  // the first one, if the step was skipped for it
  std::uint64_t flags = 0;       // of all ranks, or'ed
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

  // Drains, then hashes master weights and moments of all parameters, frozen weights, and the number of applied
  // steps: see state_hash.h. Depends on nothing else: not on placement, ranks, tiles or threads. Collective.
  std::uint64_t state_hash();

  // Drains, then compares what ranks hold in common: weights that every rank keeps, state of replicas. Throws CommError
  // that names the rank and the layer. Collective.
  void compare_ranks();

  // Drains, then reads or replaces all of one parameter's section, wherever it lives: see TensorAccess. Collective.
  void read_tensor(std::string_view name, StateSection section, std::span<float> out);
  void write_tensor(std::string_view name, StateSection section, std::span<const float> values);

  // From the coming step on, calls `hook` in every step when the gradients are complete, before norm, clipping and verdict,
  // on a thread of the engine; the optimizer waits meanwhile. All ranks give one. What it throws ends the run with that
  // error. Empty: none. Between steps only.
  void before_update(std::function<void(GradientAccess&)> hook);

  // Flips a bit of the first weight of a layer here.
  void corrupt_for_test(int layer);

  // What this rank saves, item after item; and memory for items on their way: what the plan has for them, else room for
  // one between steps.
  std::span<const SnapshotItem> snapshot_items() const;
  std::span<std::byte> snapshot_memory();

  // The coming step hands the state as it is now to the sink (borrowed until that step's update is done, that is
  // until the next step() or drain() has returned), each item before its update. Needs snapshot_memory() in the plan.
  void snapshot_in_next_step(SnapshotSink& sink);

  // Drains, then hands the state to the sink.
  void snapshot(SnapshotSink& sink);

  // Counters and loss scale: what a checkpoint keeps beside the state.
  GateState gate_state() const;

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
  // Payload this rank has sent to others in the collectives of steps and evaluations.
  std::int64_t sent_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway
