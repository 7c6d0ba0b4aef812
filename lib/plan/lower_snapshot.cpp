// What this rank copies out for a checkpoint. The tasks stand at the head of the step, in the order of the updates that
// will change what they read: an update waits for the copy of its own tile, and for nothing else.
#include <algorithm>

#include <fmt/format.h>

#include "plan/lower.h"
#include "plan/ranks.h"

namespace spillway {

namespace {

// Replicas of the same tile take turns in saving it.
bool saves_tile(const PlanRequest& request, int number) {
  const Partition ranks = partition_of(request);
  return number % ranks.replicas() == request.rank / ranks.partition;
}

bool saves_frozen(const PlanRequest& request, const LayerPlan& layer, int number) {
  return layer.resident ? number % request.world_size == request.rank : saves_tile(request, number);
}

std::int64_t bytes_of(const Plan& plan, const SnapshotPlan& snapshot) {
  if (snapshot.tile >= 0) return plan.tiles[static_cast<std::size_t>(snapshot.tile)].state_bytes();
  const WeightsChunk& chunk = plan.weights_chunks[static_cast<std::size_t>(snapshot.chunk)];
  return round_up(chunk.num_elements() * size_of(plan.request.dtype), 4096);
}

Access source_of(const Plan& plan, const SnapshotPlan& snapshot) {
  if (snapshot.tile >= 0) return read_of(plan, plan.tiles[static_cast<std::size_t>(snapshot.tile)].state_buffer, Role::state);
  const WeightsChunk& chunk = plan.weights_chunks[static_cast<std::size_t>(snapshot.chunk)];
  const LayerPlan& layer = plan.layers[static_cast<std::size_t>(chunk.layer)];
  const std::int64_t width = size_of(plan.request.dtype), begin = layer.weights_offset(chunk.begin, width);
  return part(read_of(plan, layer.weights_buffer, Role::source), begin, begin + chunk.num_elements() * width);
}

void choose_snapshots(Plan& plan) {
  for (const int l : update_order(plan)) {
    const LayerPlan& layer = plan.layers[static_cast<std::size_t>(l)];
    for (int i = 0; i < layer.num_tiles; ++i) {
      if (saves_tile(plan.request, i)) plan.snapshots.push_back({layer.first_tile + i, -1});
    }
  }
  std::vector<int> seen(plan.layers.size(), 0);
  for (std::size_t c = 0; c < plan.weights_chunks.size(); ++c) {
    const WeightsChunk& chunk = plan.weights_chunks[c];
    const LayerPlan& layer = plan.layers[static_cast<std::size_t>(chunk.layer)];
    if (chunk.begin < layer.num_trainable) continue;
    if (saves_frozen(plan.request, layer, seen[static_cast<std::size_t>(chunk.layer)]++)) plan.snapshots.push_back({-1, static_cast<int>(c)});
  }
}

}  // namespace

void lower_snapshots(Plan& plan, Timeline& timeline) {
  choose_snapshots(plan);
  if (plan.request.snapshot_bytes == 0 || plan.snapshots.empty()) return;
  std::int64_t largest = 0;
  for (const SnapshotPlan& snapshot : plan.snapshots) largest = std::max(largest, bytes_of(plan, snapshot));
  const std::int64_t places = std::clamp<std::int64_t>(plan.request.snapshot_bytes / largest, 1, static_cast<std::int64_t>(plan.snapshots.size()));
  plan.snapshot_buffer = add_persistent(plan, "state on its way to a checkpoint", Tier::host, Owner::staging, places * largest);
  for (std::size_t i = 0; i < plan.snapshots.size(); ++i) {
    const int tile = plan.snapshots[i].tile;
    const int layer = tile >= 0 ? plan.tiles[static_cast<std::size_t>(tile)].layer
                                : plan.weights_chunks[static_cast<std::size_t>(plan.snapshots[i].chunk)].layer;
    Task task = make_task(TaskKind::snapshot, Lane::snapshot, layer, -1, 0, {source_of(plan, plan.snapshots[i])});
    task.tile = static_cast<int>(i);
    timeline.before(0, std::move(task));
  }
}

}  // namespace spillway
