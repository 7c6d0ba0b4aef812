// What each kind of task does, in terms of layers, kernels, copies and transfers.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/executor.h"
#include "runtime/extent_index.h"
#include "runtime/finished_gradients.h"
#include "runtime/gate.h"
#include "runtime/gradient_access.h"
#include "runtime/plan_memory.h"
#include "runtime/rank_links.h"
#include "runtime/snapshot_reader.h"
#include "runtime/state_io.h"
#include "spillway/device.h"
#include "spillway/model.h"
#include "spillway/ops.h"

namespace spillway {

class PlanActions final : public TaskActions {
 public:
  // Borrows everything.
  // `store`, `links` and `snapshots` are nullptr if nothing is on NVMe, in a world of one, and where the plan has no
  // snapshots.
  PlanActions(const Plan& plan, PlanMemory& memory, const std::vector<std::unique_ptr<Layer>>& layers, Device& device, SwapStore* store,
              Ops& ops, Gate& gate, RankLinks* links, SnapshotReader* snapshots, std::function<std::uint64_t()> flags);

  void enqueue(const Task& task, Stream& stream) override;
  void execute(const Task& task) override;
  int start_transfers(const Task& task, SwapChannel& channel, std::uint64_t tag) override;

  // Before a run of the step program: the tokens of all its micro-batches that have a target, and where the state as
  // it is before the step's updates goes, if anywhere (borrowed). In a rehearsal everything runs but nothing is
  // updated and the gate remembers nothing.
  void begin_step(std::int64_t counted_tokens, SnapshotSink* sink, bool rehearsal);

  // What the gate of every later run that is no rehearsal calls before it looks at the norm; may be empty.
  void before_update(std::function<void(GradientAccess&)> hook) { before_update_ = std::move(hook); }

  // After the gate of that run.
  const GateVerdict& verdict() const { return verdict_; }
  std::uint64_t flags() const { return flags_; }
  const std::string& first_bad_tensor() const { return first_bad_tensor_; }
  std::int64_t gate_ns() const { return gate_ns_; }

 private:
  // Where the bytes of the task's access with this role are; nullptr if it has none.
  template <class T>
  T* pointer(const Task& task, Role role) const {
    const Access* access = find_access(task, role);
    return access == nullptr ? nullptr : reinterpret_cast<T*>(memory_.bytes(*access).data());
  }
  std::span<std::byte> workspace(const Task& task) const;
  bool skips(const Task& task) const;

  void copy(const Task& task, Stream& stream);
  void forward(const Task& task, Stream& stream);
  void backward(const Task& task, Stream& stream);
  FinalizeGradient finalize_arguments(const Task& task) const;
  OptimizerTile optimizer_tile(const Task& task) const;
  void collect(const Task& task, Stream& stream);
  void pack(const Task& task, Stream& stream);
  void sum(const Task& task, Stream& stream);
  WorldStatistics gather_statistics(const Task& task);
  void exchange(const Task& task);
  void decide(const Task& task);
  void take_snapshot(const Task& task);
  void show_gradients(const GateInput& input);
  void name_bad_tensor();
  std::string bad_tensor_here();
  std::int64_t planned_tokens() const;

  const Plan& plan_;
  PlanMemory& memory_;
  const std::vector<std::unique_ptr<Layer>>& layers_;
  Device& device_;
  ExtentIndex extents_;
  FinishedGradients gradients_;
  Ops& ops_;
  Gate& gate_;
  RankLinks* links_;
  SnapshotReader* snapshots_;
  // The snapshot lane may be a run or two behind the step that is being prepared: each run has a sink of its own.
  std::array<SnapshotSink*, 4> sinks_{};
  std::uint32_t prepared_runs_ = 0;       // caller's thread
  std::uint32_t snapshot_runs_ = 0;       // snapshot lane
  std::function<std::uint64_t()> ask_flags_;
  std::uint64_t flags_ = 0;
  std::function<void(GradientAccess&)> before_update_;
  std::vector<double> rank_sums_;    // square sums by rank
  std::vector<double> square_sums_;  // of this rank's slices of all layers in order
  std::int64_t counted_tokens_ = 0;
  bool rehearsal_ = false;
  float gradient_scale_ = 1.0f;      // on the gradient of one token's loss
  GateVerdict verdict_;
  std::string first_bad_tensor_;
  std::int64_t gate_ns_ = 0;
};

}  // namespace spillway
