// Forward and backward of every micro-batch, micro-batch after micro-batch, and the gate behind them.
#include <algorithm>

#include <fmt/format.h>

#include "plan/lower.h"
#include "plan/lower_gradients.h"

namespace spillway {

namespace {

struct ComputeOp {
  TaskKind kind;
  int layer;
  int micro_batch;
};

std::vector<ComputeOp> micro_batch_major(const PlanRequest& request) {
  std::vector<ComputeOp> ops;
  const int head = static_cast<int>(request.layers.size()) - 1;
  for (int m = 0; m < request.accumulation_steps; ++m) {
    for (int l = 0; l < head; ++l) ops.push_back({TaskKind::forward, l, m});
    for (int l = head; l >= 0; --l) ops.push_back({TaskKind::backward, l, m});
  }
  return ops;
}

// An activation on the host, and the first position before which it may be asked for.
struct Landed {
  int buffer;
  std::int64_t position;
};

class ComputeLowering {
 public:
  explicit ComputeLowering(Plan& plan)
      : plan_(plan),
        request_(plan.request),
        ops_(micro_batch_major(plan.request)),
        timeline_(ops_.size()),
        head_(static_cast<int>(plan.layers.size()) - 1),
        statistics_bytes_(plan.buffers[static_cast<std::size_t>(plan.statistics_buffer)].bytes),
        statistics_(add_transient(plan, "losses and square sums on the device", Tier::device, Owner::statistics, statistics_bytes_)),
        gradients_(plan, timeline_, statistics_) {}

  Timeline run() &&;

 private:
  std::int64_t activation_bytes() const { return spillway::activation_bytes(request_); }
  const LayerShape& shape(int layer) const { return request_.layers[static_cast<std::size_t>(layer)]; }
  const LayerPlan& layer(int l) const { return plan_.layers[static_cast<std::size_t>(l)]; }
  // Position of a layer's forward or backward in the timeline.
  std::int64_t position(TaskKind kind, int l, int m) const {
    const std::int64_t base = static_cast<std::int64_t>(m) * (2 * head_ + 1);
    return kind == TaskKind::forward ? base + l : base + 2 * head_ - l;
  }

  void plan_weights();
  void start_micro_batch(int m);
  void add_op(std::size_t u);
  void add_forward_accesses(const ComputeOp& op, Task& task);
  void add_backward_accesses(const ComputeOp& op, Task& task);
  int input_of_backward(const ComputeOp& op);
  void offload_activation(std::size_t u, const ComputeOp& op);
  std::int64_t written_at(int l, int m) const;
  Landed read_back(const ComputeOp& op);
  void add_gate();

  Plan& plan_;
  const PlanRequest& request_;
  std::vector<ComputeOp> ops_;
  Timeline timeline_;
  int head_;
  std::int64_t statistics_bytes_;
  int statistics_;                               // device: losses, then square sums
  GradientLowering gradients_;

  std::vector<std::vector<int>> weights_of_op_;  // per position: device buffer of own and tied weights
  int dactivation_ = -1;                         // gradient of the activation, updated in place down the layers
  std::vector<int> outputs_;                     // per layer: its forward output of this micro-batch
  std::vector<int> saved_;                       // per layer: its output on the host, on its way or for good; or -1
};

// Cuts each layer's uses into runs that keep the weights on the device: a use at most two positions
// after the last one (the turn from forward to backward) does not fetch them again.
void ComputeLowering::plan_weights() {
  const std::int64_t reuse = request_.max_reuse_distance > 0 ? 2 : 0;
  weights_of_op_.assign(ops_.size(), {-1, -1});
  for (int l = 0; l <= head_; ++l) {
    std::vector<std::size_t> uses;
    for (std::size_t u = 0; u < ops_.size(); ++u) {
      const bool own = ops_[u].layer == l && !(ops_[u].kind == TaskKind::backward && l == 0);
      if (own || shape(ops_[u].layer).tied_layer == l) uses.push_back(u);
    }
    for (std::size_t i = 0; i < uses.size();) {
      std::size_t j = i;
      while (j + 1 < uses.size() && static_cast<std::int64_t>(uses[j + 1] - uses[j]) <= reuse) ++j;
      const int buffer = lower_weights(plan_, timeline_, l, static_cast<std::int64_t>(uses[i]));
      for (; i <= j; ++i) weights_of_op_[uses[i]][ops_[uses[i]].layer == l ? 0 : 1] = buffer;
    }
  }
}

void ComputeLowering::start_micro_batch(int m) {
  dactivation_ = add_transient(plan_, fmt::format("activation gradient, micro-batch {}", m), Tier::device,
                               Owner::activations, activation_bytes());
  outputs_.assign(plan_.layers.size(), -1);
  saved_.assign(plan_.layers.size(), -1);
  gradients_.start_micro_batch();
}

void ComputeLowering::add_forward_accesses(const ComputeOp& op, Task& task) {
  if (op.layer == 0) {
    task.accesses.push_back(batch_of(plan_, op.micro_batch));
  } else {
    task.accesses.push_back(read_of(plan_, outputs_[static_cast<std::size_t>(op.layer) - 1], Role::x));
  }
  int& y = outputs_[static_cast<std::size_t>(op.layer)];
  y = add_transient(plan_, fmt::format("output of {}, micro-batch {}", layer(op.layer).name, op.micro_batch),
                    Tier::device, Owner::activations, activation_bytes());
  task.accesses.push_back(write_of(plan_, y, Role::y));
}

// Behind which position the layer's output goes to NVMe, after it has come to the host. Not at once: the next outputs
// would take over its memory there, and wait for the disk.
std::int64_t ComputeLowering::written_at(int l, int m) const {
  return std::min(position(TaskKind::forward, l, m) + 1 + request_.prefetch_depth, position(TaskKind::backward, l + 1, m) - 2);
}

// The layer's saved input on the host: there all the time, or read from NVMe ahead of its way to the device.
Landed ComputeLowering::read_back(const ComputeOp& op) {
  const int l = op.layer - 1, m = op.micro_batch;
  const int saved = saved_[static_cast<std::size_t>(l)];
  if (layer(l).activation_tier != Tier::nvme) return {saved, position(TaskKind::forward, l, m) + 2};
  const Access home = read_of(plan_, layer(l).activation_buffer, Role::source);
  const int back = add_transient(plan_, fmt::format("saved output of {}, micro-batch {}, read", layer(l).name, m), Tier::host, Owner::staging, home.end);
  const std::int64_t at = std::max(written_at(l, m) + 1, position(TaskKind::backward, op.layer, m) - 2 * request_.prefetch_depth);
  timeline_.before(at, make_task(TaskKind::read_activation, Lane::nvme_fetch, l, m, home.end, {home, write_of(plan_, back, Role::destination)}));
  return {back, at};
}

// The layer's input: where forward left it, or brought back.
int ComputeLowering::input_of_backward(const ComputeOp& op) {
  const auto input = static_cast<std::size_t>(op.layer) - 1;
  if (saved_[input] < 0) return outputs_[input];
  const int back = add_transient(plan_, plan_.buffers[static_cast<std::size_t>(saved_[input])].name + " again",
                                 Tier::device, Owner::activations, activation_bytes());
  // Not ahead of its own departure, however deep the prefetch.
  const Landed landed = read_back(op);
  timeline_.before(std::max(landed.position, position(TaskKind::backward, op.layer, op.micro_batch) - request_.prefetch_depth),
                   make_task(TaskKind::load_activation, Lane::h2d, op.layer, op.micro_batch, activation_bytes(),
                             {part(read_of(plan_, landed.buffer, Role::source), 0, activation_bytes()), write_of(plan_, back, Role::destination)}));
  return back;
}

void ComputeLowering::add_backward_accesses(const ComputeOp& op, Task& task) {
  const auto l = static_cast<std::size_t>(op.layer);
  if (op.layer == head_ || op.layer == 0) task.accesses.push_back(batch_of(plan_, op.micro_batch));
  if (op.layer > 0) task.accesses.push_back(read_of(plan_, input_of_backward(op), Role::x));
  if (op.layer == head_) {
    task.accesses.push_back(read_of(plan_, plan_.verdict_buffer, Role::verdict));  // the loss scale
    task.accesses.push_back(write_of(plan_, dactivation_, Role::dx));
    task.accesses.push_back(part(write_of(plan_, statistics_, Role::loss), op.micro_batch * 8, op.micro_batch * 8 + 8));
  } else if (op.layer > 0) {
    task.accesses.push_back(update_of(plan_, dactivation_, Role::dy));
  } else {
    task.accesses.push_back(read_of(plan_, dactivation_, Role::dy));
  }
  const bool shared = gradients_.has_gradient(l);  // another layer's tied part is already in it
  const int gradient = gradients_.gradient_of(l, op.micro_batch);
  task.accesses.push_back(shared ? update_of(plan_, gradient, Role::gradient) : write_of(plan_, gradient, Role::gradient));
  if (shape(op.layer).tied_layer >= 0) {
    task.accesses.push_back(write_of(plan_, gradients_.gradient_of(static_cast<std::size_t>(shape(op.layer).tied_layer), op.micro_batch), Role::tied_gradient));
  }
}

void ComputeLowering::add_op(std::size_t u) {
  const ComputeOp& op = ops_[u];
  const bool is_forward = op.kind == TaskKind::forward;
  Task task = make_task(op.kind, Lane::compute, op.layer, op.micro_batch, 0, {});
  task.flops = is_forward ? shape(op.layer).forward_flops : shape(op.layer).backward_flops;
  const std::int64_t workspace = is_forward ? shape(op.layer).forward_workspace : shape(op.layer).backward_workspace;
  if (weights_of_op_[u][0] >= 0) task.accesses.push_back(read_of(plan_, weights_of_op_[u][0], Role::weights));
  if (weights_of_op_[u][1] >= 0) task.accesses.push_back(read_of(plan_, weights_of_op_[u][1], Role::tied_weights));
  if (workspace > 0) {
    const int buffer = add_transient(plan_, fmt::format("workspace of {} {}", name_of(op.kind), layer(op.layer).name),
                                     Tier::device, Owner::workspace, workspace);
    task.accesses.push_back(write_of(plan_, buffer, Role::workspace));
  }
  is_forward ? add_forward_accesses(op, task) : add_backward_accesses(op, task);
  timeline_.at(u, std::move(task));
  is_forward ? offload_activation(u, op) : gradients_.after_backward(u, op.layer, op.micro_batch);
}

void ComputeLowering::offload_activation(std::size_t u, const ComputeOp& op) {
  const auto l = static_cast<std::size_t>(op.layer);
  const Tier tier = layer(op.layer).activation_tier;
  if (tier == Tier::device) return;
  const int home = layer(op.layer).activation_buffer;
  const bool stays = tier == Tier::host;
  const std::int64_t kept = stays ? activation_bytes() : plan_.buffers[static_cast<std::size_t>(home)].bytes;
  saved_[l] = add_transient(plan_, fmt::format("saved output of {}, micro-batch {}", layer(op.layer).name, op.micro_batch),
                            Tier::host, stays ? Owner::activations : Owner::staging, kept);
  timeline_.after(static_cast<std::int64_t>(u) + 1,
                  make_task(TaskKind::save_activation, Lane::d2h, op.layer, op.micro_batch, activation_bytes(),
                            {read_of(plan_, outputs_[l], Role::source), write_of(plan_, saved_[l], Role::destination)}));
  if (stays) return;
  // Not behind the state that the step before writes back: the forward would soon wait for the end of the optimizer.
  timeline_.after(written_at(op.layer, op.micro_batch),
                  make_task(TaskKind::write_activation, Lane::nvme_fetch, op.layer, op.micro_batch, kept,
                            {read_of(plan_, saved_[l], Role::source), write_of(plan_, home, Role::destination)}));
}

// Norm, verdict, learning rate: from what the device, the host and the other ranks have counted.
void ComputeLowering::add_gate() {
  const auto end = static_cast<std::int64_t>(timeline_.positions());
  timeline_.before(end, make_task(TaskKind::drain_statistics, Lane::d2h, -1, -1, statistics_bytes_,
                                  {read_of(plan_, statistics_, Role::source),
                                   write_of(plan_, plan_.statistics_buffer, Role::destination)}));
  std::vector<Access> sums = {read_of(plan_, plan_.statistics_buffer, Role::square_sums)};
  if (plan_.host_square_sums_buffer >= 0) sums.push_back(read_of(plan_, plan_.host_square_sums_buffer, Role::host_square_sums));
  std::vector<Access> gate = sums;
  gate.push_back(write_of(plan_, plan_.verdict_buffer, Role::verdict));
  if (plan_.world_statistics_buffer >= 0) {
    sums.push_back(write_of(plan_, plan_.world_statistics_buffer, Role::world_statistics));
    timeline_.before(end, make_task(TaskKind::exchange_statistics, Lane::cpu, -1, -1, statistics_bytes_, std::move(sums)));
    gate.push_back(read_of(plan_, plan_.world_statistics_buffer, Role::world_statistics));
  }
  // If a value is not finite, the gate looks for its tensor; and a caller's hook may change any.
  std::int64_t largest = 0;
  for (const LayerPlan& layer : plan_.layers) {
    if (layer.gradient_buffer < 0) continue;
    gate.push_back(update_of(plan_, layer.gradient_buffer, Role::gradient));
    if (layer.gradient_tier != Tier::nvme || layer.num_tiles == 0) continue;
    largest = std::max(largest, padded_bytes(plan_.tiles[static_cast<std::size_t>(layer.first_tile)], layer.gradient_dtype));
  }
  if (largest > 0) {
    plan_.gradient_tile_buffer = add_transient(plan_, "a tile of a gradient at the gate", Tier::host, Owner::staging, largest);
    gate.push_back(write_of(plan_, plan_.gradient_tile_buffer, Role::workspace));
  }
  timeline_.before(end, make_task(TaskKind::gate, Lane::cpu, -1, -1, statistics_bytes_, std::move(gate)));
}

Timeline ComputeLowering::run() && {
  plan_weights();
  for (std::size_t u = 0; u < ops_.size(); ++u) {
    if (ops_[u].kind == TaskKind::forward && ops_[u].layer == 0) start_micro_batch(ops_[u].micro_batch);
    add_op(u);
  }
  gradients_.finish();
  add_gate();
  return std::move(timeline_);
}

}  // namespace

Timeline lower_compute(Plan& plan) { return ComputeLowering(plan).run(); }

}  // namespace spillway
