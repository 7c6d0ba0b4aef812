// Plays the programs of a plan: one thread per lane, in plan order, each task when its dependencies have
// finished. Streams are ordered with events, so that the host never blocks the compute stream; the NVMe
// lanes keep several transfers in flight. The first failure stops everything and is thrown on the
// caller's thread.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>

#include "spillway/device.h"
#include "spillway/plan.h"
#include "spillway/swap_store.h"

namespace spillway {

enum class ProgramId : std::uint8_t { step, evaluation };

// What the tasks do. Called on the lanes' threads, each lane's own task after task.
class TaskActions {
 public:
  virtual ~TaskActions() = default;

  // Enqueues the task's work on the lane's stream and returns.
  virtual void enqueue(const Task& task, Stream& stream) = 0;

  // Does the task's work (cpu and snapshot lanes).
  virtual void execute(const Task& task) = 0;

  // Starts the task's transfers, all tagged `tag` (NVMe lanes). Returns how many; 0: there is nothing to do.
  virtual int start_transfers(const Task& task, SwapChannel& channel, std::uint64_t tag) = 0;
};

struct TaskTime {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

struct ExecutorOptions {
  // Before each task a lane sleeps a pseudo-random 0 to this many microseconds. Tests only.
  int chaos_max_delay_us = 0;
  std::uint64_t chaos_seed = 0;
  // Called once, on the thread that noticed, when the first task fails: before any other thread is told.
  std::function<void(const std::exception_ptr&)> on_failure = {};
};

class Executor {
 public:
  // Borrows everything. `store` may be nullptr if no task is on an NVMe lane.
  Executor(const Plan& plan, Device& device, SwapStore* store, TaskActions& actions, const ExecutorOptions& options);
  // Finishes what was submitted, then stops the lanes.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Starts another run of a program and returns its number (from 1, per program). At most two runs are
  // in progress: blocks until the last but one has finished. Different programs do not overlap: call
  // drain() in between. Throws the first failure of any lane.
  std::uint32_t submit(ProgramId program);

  // Blocks until the task of that run has finished. Throws the first failure of any lane.
  void wait(ProgramId program, std::uint32_t run, int task);

  // Blocks until everything submitted has finished. Throws the first failure of any lane.
  void drain();

  // When each task of a run started and ended; blocks until the run has finished. The run is the last one
  // submitted or the one before; valid until the next submit().
  std::span<const TaskTime> times(ProgramId program, std::uint32_t run);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spillway
