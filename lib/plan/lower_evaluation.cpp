// Weights on their way to the device, and the forward-only program of evaluation.
#include <fmt/format.h>

#include "plan/lower.h"

namespace spillway {

int lower_weights(Plan& plan, Timeline& timeline, int layer, std::int64_t first) {
  const LayerPlan& source = plan.layers[static_cast<std::size_t>(layer)];
  if (source.weights_tier == Tier::device) return source.weights_buffer;
  const std::int64_t depth = plan.request.prefetch_depth;
  int from = source.weights_buffer;
  const std::int64_t stored = plan.buffers[static_cast<std::size_t>(from)].bytes;
  if (source.weights_tier == Tier::nvme) {
    const int staging = add_transient(plan, fmt::format("weights of {}, read", source.name), Tier::host, Owner::staging, stored);
    timeline.before(first - 2 * depth, make_task(TaskKind::read_weights, Lane::nvme_fetch, layer, -1, stored,
                                                 {read_of(plan, from, Role::source), write_of(plan, staging, Role::destination)}));
    from = staging;
  }
  const std::int64_t bytes = source.num_elements * size_of(plan.request.dtype);
  const int slot = add_transient(plan, fmt::format("weights of {}, gathered", source.name), Tier::device, Owner::weights, bytes);
  timeline.before(first - depth, make_task(TaskKind::gather, Lane::h2d, layer, -1, bytes,
                                           {part(read_of(plan, from, Role::source), 0, bytes), write_of(plan, slot, Role::destination)}));
  return slot;
}

Timeline lower_evaluation(Plan& plan) {
  const PlanRequest& request = plan.request;
  const std::size_t layers = plan.layers.size();
  Timeline timeline(layers);
  const std::int64_t activation = request.shape.batch * request.shape.time * request.channels * size_of(request.dtype);
  const int loss = add_transient(plan, "evaluation loss", Tier::device, Owner::statistics, 8);
  int x = -1;
  for (std::size_t l = 0; l < layers; ++l) {
    const LayerShape& shape = request.layers[l];
    const auto u = static_cast<std::int64_t>(l);
    Task task = make_task(TaskKind::forward, Lane::compute, static_cast<int>(l), 0, 0, {});
    task.flops = shape.forward_flops;
    task.accesses.push_back(read_of(plan, lower_weights(plan, timeline, static_cast<int>(l), u), Role::weights));
    if (shape.tied_layer >= 0) {
      task.accesses.push_back(read_of(plan, lower_weights(plan, timeline, shape.tied_layer, u), Role::tied_weights));
    }
    if (shape.forward_workspace > 0) {
      task.accesses.push_back(write_of(plan, add_transient(plan, fmt::format("evaluation workspace of {}", shape.name), Tier::device,
                                                           Owner::workspace, shape.forward_workspace), Role::workspace));
    }
    if (x >= 0) task.accesses.push_back(read_of(plan, x, Role::x));
    if (l == 0 || l + 1 == layers) task.accesses.push_back(batch_of(plan, 0));
    if (l + 1 < layers) {
      x = add_transient(plan, fmt::format("evaluation output of {}", shape.name), Tier::device, Owner::activations, activation);
      task.accesses.push_back(write_of(plan, x, Role::y));
    } else {
      task.accesses.push_back(write_of(plan, loss, Role::loss));
    }
    timeline.at(l, std::move(task));
  }
  timeline.before(static_cast<std::int64_t>(layers), make_task(TaskKind::drain_statistics, Lane::d2h, -1, -1, 8,
                                             {read_of(plan, loss, Role::source),
                                              part(write_of(plan, plan.statistics_buffer, Role::destination), 0, 8)}));
  return timeline;
}

}  // namespace spillway
