// Trains a tiny model in process, for tests that compare runs: on the host device, or on CUDA devices
// (SPILLWAY_TEST_DEVICE=cuda), of which rank r takes the r-th.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "spillway/config.h"
#include "support/sanitizers.h"

namespace spillway::testing {

// Of the initial values.
inline constexpr std::uint64_t kSeed = 7;

// Whether runs are on CUDA devices, which CI simulates: tests then take fewer of them.
bool on_cuda();

// Of the device's memory, what a tiny model needs as much of as a large one: cuBLASLt's workspace.
std::int64_t kept_workspace();

struct RunSetup {
  Config config;
  ModelSpec spec;
  std::int64_t time = 32;
  int steps = static_cast<int>(on_cuda() ? fewer_if_sanitized(6, 3) : fewer_if_sanitized(20, 8));
  int chaos_us = 0;               // of streams and lanes
  std::uint64_t chaos_seed = 1;
  bool rehearse = false;
  std::function<void(Plan&)> edit_plan;                   // after planning
  std::function<std::unique_ptr<IoEngine>(const IoEngineOptions&)> make_io_engine;
  std::function<void(Engine&, int step)> before_step;
  std::function<void(Engine&)> after_steps;
  std::function<void(PlanRequest&)> edit_request;          // before planning
  std::vector<std::string> frozen;
  StateSource* source = nullptr;                           // what the run starts from, instead of the seed
  std::optional<GateState> gate;                           // and its counters; unset: as a fresh run's
  World* world = nullptr;                                  // this run's ranks; nullptr: one
  World* device_world = nullptr;                           // and what moves their devices' memory, if `world` cannot
  bool on_host = false;                                    // on the host device, whichever is under test
};

struct RunResult {
  std::uint64_t state_hash = 0;
  std::int64_t sent_bytes = 0;
  std::array<std::int64_t, kTiers> peak{}, planned{};
  std::vector<StepResult> steps;
};

// bf16, AdamW, clipping on, micro-batch 2, no accumulation: the tests change what they are about.
RunSetup tiny_run();

// A fresh folder on a real file system, removed with the object.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The plan the setup would get, whether it fits or not.
Plan plan_of(const RunSetup& setup);

std::unique_ptr<Engine> make_engine(const RunSetup& setup);

// Deterministic tokens: sample `sample` of every run is the same, however it is cut into micro-batches.
void fill_batch(Engine& engine, const RunSetup& setup, int step);

RunResult train(const RunSetup& setup);

// The same run by so many ranks, each a thread; the micro-batch is each rank's. One result per rank.
std::vector<RunResult> train_ranks(const RunSetup& setup, int world);

// Calls act(setup of the rank) for every rank, each on a thread of its own, and rethrows the first error (by rank).
// A rank that throws tells the others.
void for_each_rank(const RunSetup& setup, int world, const std::function<void(RunSetup&)>& act, double timeout_s = 60.0);

}  // namespace spillway::testing
