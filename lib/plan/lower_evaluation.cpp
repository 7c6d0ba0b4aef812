// Weights on their way to the device, and the forward-only program of evaluation.
#include <fmt/format.h>

#include "plan/lower.h"
#include "plan/ranks.h"

namespace spillway {

namespace {

// Copies a stretch that the buffer `from` holds at byte `at` to its place in the gathered layer.
Task gather_stretch(const Plan& plan, int layer, int from, std::int64_t at, int slot, ElementRange stretch) {
  const LayerPlan& source = plan.layers[static_cast<std::size_t>(layer)];
  const std::int64_t width = size_of(plan.request.dtype), bytes = stretch.size() * width;
  const Lane lane = source.weights_tier == Tier::device ? comm_lane(plan.request) : Lane::h2d;
  return make_task(TaskKind::gather, lane, layer, -1, bytes,
                   {part(read_of(plan, from, Role::source), at, at + bytes),
                    part(write_of(plan, slot, Role::destination), stretch.begin * width, stretch.end * width)});
}

}  // namespace

int lower_weights(Plan& plan, Timeline& timeline, int layer, std::int64_t first) {
  const LayerPlan source = plan.layers[static_cast<std::size_t>(layer)];
  if (source.resident) return source.weights_buffer;
  const LayerShape& shape = plan.request.layers[static_cast<std::size_t>(layer)];
  const std::int64_t depth = prefetch_distance(plan.request, shape);
  int from = source.weights_buffer;
  const std::int64_t stored = plan.buffers[static_cast<std::size_t>(from)].bytes;
  if (source.weights_tier == Tier::nvme && stored > 0) {
    const int staging = add_transient(plan, fmt::format("weights of {}, read", source.name), Tier::host, Owner::staging, stored);
    timeline.before(first - 2 * depth, make_task(TaskKind::read_weights, Lane::nvme_fetch, layer, -1, stored,
                                                 {read_of(plan, from, Role::source), write_of(plan, staging, Role::destination)}));
    from = staging;
  }
  const std::int64_t width = size_of(plan.request.dtype);
  const int slot = add_transient(plan, fmt::format("weights of {}, gathered", source.name), Tier::device, Owner::weights, source.num_elements * width);
  if (!source.owned.empty()) timeline.before(first - depth, gather_stretch(plan, layer, from, 0, slot, source.owned));
  if (!source.frozen.empty()) timeline.before(first - depth, gather_stretch(plan, layer, from, source.frozen_offset, slot, source.frozen));
  if (!weights_are_sharded(plan.request, shape)) return slot;
  const std::int64_t trained = source.num_trainable, frozen = source.num_elements - trained;
  for (Task& task : all_gather_shards(plan, TaskKind::all_gather, layer, slot, Role::destination, 0, trained, width, false)) {
    timeline.before(first - depth, std::move(task));
  }
  for (Task& task : all_gather_shards(plan, TaskKind::all_gather, layer, slot, Role::destination, trained * width, frozen, width, false)) {
    timeline.before(first - depth, std::move(task));
  }
  return slot;
}

Timeline lower_evaluation(Plan& plan) {
  const PlanRequest& request = plan.request;
  const std::size_t layers = plan.layers.size();
  Timeline timeline(layers);
  const std::int64_t activation = activation_bytes(request);
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
