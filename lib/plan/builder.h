// What the lowering passes write with: buffers, tasks, and accesses by role.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "spillway/plan.h"

namespace spillway {

// Access to all of a buffer, or to a part of it.
Access read_of(const Plan& plan, int buffer, Role role);
Access write_of(const Plan& plan, int buffer, Role role);
Access update_of(const Plan& plan, int buffer, Role role);
Access part(Access access, std::int64_t begin, std::int64_t end);

// Read access to a micro-batch's tokens and targets. Kernels read them in place, in pinned host memory: a few
// bytes a token, and no copy that the end of one step could hold up in the next.
Access batch_of(const Plan& plan, int micro_batch);

int add_buffer(Plan& plan, std::string name, Tier tier, Owner owner, std::int64_t bytes, bool persistent);

inline int add_persistent(Plan& plan, std::string name, Tier tier, Owner owner, std::int64_t bytes) {
  return add_buffer(plan, std::move(name), tier, owner, bytes, true);
}

inline int add_transient(Plan& plan, std::string name, Tier tier, Owner owner, std::int64_t bytes) {
  return add_buffer(plan, std::move(name), tier, owner, bytes, false);
}

// Write access to the square sums of some of the elements whose gradient this rank reduces: whole pieces of them, each
// of which has one.
Access square_sums_of(const Plan& plan, const LayerPlan& layer, ElementRange elements, int buffer);

// Read access to the gradient of a tile whose layer has it on NVMe, padding included.
Access gradient_at_home(const Plan& plan, int tile, Role role);

// Of one layer's output of one micro-batch.
std::int64_t activation_bytes(const PlanRequest& request);

Task make_task(TaskKind kind, Lane lane, int layer, int micro_batch, std::int64_t bytes, std::vector<Access> accesses);

// A sequence of compute tasks with the transfers that belong around them. Position u is the u-th
// compute task; a transfer placed "before u" is issued, and its memory taken, ahead of that task.
class Timeline {
 public:
  explicit Timeline(std::size_t positions) : before_(positions + 1), at_(positions), after_(positions) {}

  std::size_t positions() const { return at_.size(); }
  void before(std::int64_t position, Task task) { before_[clamp(position)].push_back(std::move(task)); }
  void at(std::size_t position, Task task) { at_[position].push_back(std::move(task)); }
  void after(std::int64_t position, Task task) { after_[clamp_last(position)].push_back(std::move(task)); }

  // All tasks in plan order.
  std::vector<Task> flatten() &&;

 private:
  std::size_t clamp(std::int64_t position) const;
  std::size_t clamp_last(std::int64_t position) const;

  std::vector<std::vector<Task>> before_;
  std::vector<std::vector<Task>> at_;
  std::vector<std::vector<Task>> after_;
};

}  // namespace spillway
