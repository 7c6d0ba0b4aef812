// Fake task actions for the executor's tests: each task reads its inputs and writes bytes that depend on
// them, on the task and on the run. Any order the plan does not allow leaves other bytes behind than
// playing the plan task after task does.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "spillway/plan.h"
#include "support/aligned_buffer.h"

namespace spillway::testing {

// Zeroed memory for every tier of a plan.
struct TierMemory {
  explicit TierMemory(const Plan& plan);

  std::span<std::byte> bytes(const Plan& plan, const Access& access);

  std::deque<AlignedBuffer> arenas;  // by tier; the executor's NVMe tier is a swap store instead
};

// The store of a plan, each extent written with zeros; nullptr if nothing is on NVMe.
std::unique_ptr<SwapStore> zeroed_store(const Plan& plan, SwapStoreOptions options);

// What one execution of a task did. Stamps are of one counter for all; 0: not started, not finished.
struct TaskTrace {
  std::int64_t start = 0;
  std::int64_t end = 0;       // host and stream tasks only
  std::uint64_t inputs = 0;   // hash of what it read; likewise
};

// Makes one task throw. On a stream, inside the work itself; with `early`, while it is enqueued.
struct TaskFault {
  ProgramId program = ProgramId::step;
  std::uint32_t run = 1;
  int task = 0;
  bool early = false;
  std::string text;
};

class DataFlow final : public TaskActions {
 public:
  // For at most `max_runs` runs of each program. Borrows the plan.
  DataFlow(const Plan& plan, std::uint32_t max_runs);

  // Where tasks on threads of the host find what they touch on NVMe (borrowed); without one it is in memory.
  void use_store(SwapStore* store) { store_ = store; }

  void enqueue(const Task& task, Stream& stream) override;
  void execute(const Task& task) override;
  int start_transfers(const Task& task, SwapChannel& channel, std::uint64_t tag) override;

  // Plays a run here and now, task after task in plan order, NVMe in memory: what an executor has to equal.
  void play_in_order(ProgramId program);

  const TaskTrace& trace(ProgramId program, std::uint32_t run, int task) const {
    return traces_[static_cast<std::size_t>(program)][run - 1][static_cast<std::size_t>(task)];
  }
  // Tasks of a lane in the order they were executed (NVMe lanes: started).
  const std::vector<int>& order(ProgramId program, Lane lane) const {
    return orders_[static_cast<std::size_t>(program)][static_cast<std::size_t>(lane)];
  }
  // How often a task of the step program began before all of the run two before it had ended.
  int crowded_starts() const { return crowded_.load(std::memory_order_relaxed); }

  TierMemory memory;
  std::vector<TaskFault> faults;  // set before the executor is made

 private:
  struct Execution {
    ProgramId program;
    std::uint32_t run;
    int task;
  };

  Execution next_execution(const Task& task);
  void begin(const Execution& execution);
  void work(const Execution& execution);
  void fail_if_wanted(const Execution& execution, bool early) const;
  const Task& task_of(const Execution& execution) const;
  TaskTrace& trace_of(const Execution& execution);
  std::uint64_t read_inputs(const Task& task);
  void load_from_store(const Task& task);
  void keep_in_store(const Task& task);

  const Plan& plan_;
  SwapStore* store_ = nullptr;
  std::array<const Program*, 2> programs_;
  // By program, run and task; every entry belongs to its task's lane until the executor is drained.
  std::array<std::vector<std::vector<TaskTrace>>, 2> traces_;
  std::array<std::vector<std::uint32_t>, 2> runs_;
  std::array<std::array<std::vector<int>, kLanes>, 2> orders_;
  std::array<std::vector<std::byte>, kLanes> scratch_;
  // Relaxed: counting must not order the lanes.
  std::atomic<std::int64_t> clock_{0};
  std::deque<std::atomic<int>> left_;  // unfinished host and stream tasks of each run of the step program
  std::atomic<int> crowded_{0};
};

}  // namespace spillway::testing
