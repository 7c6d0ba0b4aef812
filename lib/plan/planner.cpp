// Runs the passes: place, lower, allocate, derive dependencies, check; and sinks state until it fits.
#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "base/hash.h"
#include "plan/allocate.h"
#include "plan/hazards.h"
#include "plan/lower.h"
#include "spillway/error.h"
#include "spillway/plan.h"

namespace spillway {

namespace {

Plan lower_and_allocate(const PlanRequest& request, const Placement& placement, const std::vector<TileRange>& tiles) {
  Plan plan;
  plan.request = request;
  for (std::size_t t = 0; t < kTiers; ++t) plan.tiers[t].budget = request.budgets[t];
  lower_persistent(placement, tiles, plan);
  Timeline timeline = lower_compute(plan);
  lower_update(plan, timeline);
  lower_snapshots(plan, timeline);
  plan.step.tasks = std::move(timeline).flatten();
  plan.evaluation.tasks = lower_evaluation(plan).flatten();
  allocate(plan);
  return plan;
}

void add_format(Hasher& hasher, const StateFormat& format) {
  hasher.add(static_cast<std::int64_t>(format.kind));
  hasher.add(static_cast<std::int64_t>(format.moments));
}

std::uint64_t hash_of(const Plan& plan) {
  Hasher hasher;
  add_format(hasher, plan.request.state);
  for (const Program* program : {&plan.step, &plan.evaluation}) {
    for (const Task& task : program->tasks) {
      for (const int value : {static_cast<int>(task.kind), static_cast<int>(task.lane), task.layer, task.micro_batch, task.tile}) {
        hasher.add(std::int64_t{value});
      }
      for (const Access& access : task.accesses) {
        const Buffer& buffer = plan.buffers[static_cast<std::size_t>(access.buffer)];
        for (const std::int64_t value : {static_cast<std::int64_t>(access.role), static_cast<std::int64_t>(buffer.tier), buffer.offset + access.begin, buffer.offset + access.end}) {
          hasher.add(value);
        }
      }
      for (const Dependency& d : task.dependencies) hasher.add(std::int64_t{d.task} * 2 + (d.previous_run ? 1 : 0));
    }
  }
  return hasher.value();
}

void add_range(Hasher& hasher, const Part& part) {
  hasher.add(part.offset);
  hasher.add(part.bytes);
}

// Of what ranks have in common: whom each collective joins, in which order, and how much of what each has in it.
std::uint64_t common_hash_of(const Plan& plan) {
  const PlanRequest& request = plan.request;
  Hasher hasher;
  for (const std::int64_t value : {request.shape.batch, request.shape.time, request.channels, request.accumulation_steps,
                                   static_cast<std::int64_t>(request.dtype), static_cast<std::int64_t>(request.wire),
                                   std::int64_t{request.zero_stage}, std::int64_t{request.world_size}}) {
    hasher.add(value);
  }
  add_format(hasher, request.state);
  for (const LayerShape& layer : request.layers) {
    hasher.add(layer.name);
    hasher.add(layer.num_elements);
    hasher.add(layer.num_frozen);
  }
  for (const Program* program : {&plan.step, &plan.evaluation}) {
    for (const Task& task : program->tasks) {
      if (task.collective < 0) continue;
      const CollectivePlan& collective = plan.collectives[static_cast<std::size_t>(task.collective)];
      for (const int value : {static_cast<int>(task.kind), static_cast<int>(task.lane), task.layer, task.micro_batch, static_cast<int>(collective.group)}) {
        hasher.add(std::int64_t{value});
      }
      // The groups other than the world have different members here and there.
      if (collective.group != RankGroup::replicas) {
        for (const Part& part : collective.parts) add_range(hasher, part);
      }
    }
  }
  return hasher.value();
}

LayerShape describe(const Layer& layer, const BatchShape& shape, DType dtype, const ScratchSizes& scratch) {
  return {layer.name(),
          layer.kind(),
          layer.num_elements(),
          layer.tied_layer(),
          layer.workspace_bytes(Pass::forward, shape, dtype, scratch),
          layer.workspace_bytes(Pass::backward, shape, dtype, scratch),
          layer.flops(Pass::forward, shape),
          layer.flops(Pass::backward, shape),
          layer.num_elements() - layer.trainable_elements()};
}

}  // namespace

bool Plan::fits() const {
  for (const TierUse& use : tiers) {
    if (!use.fits()) return false;
  }
  return true;
}

std::int64_t Plan::num_parameters() const {
  std::int64_t total = 0;
  for (const LayerPlan& layer : layers) total += layer.num_elements;
  return total;
}

std::int64_t Plan::tokens_per_step() const {
  return request.shape.batch * request.shape.time * request.accumulation_steps * request.world_size;
}

std::int64_t Plan::state_bytes() const {
  std::int64_t total = 0;
  for (const LayerPlan& layer : layers) {
    // An update reads and writes every byte once.
    total += layer.num_elements * size_of(request.dtype) + state_traffic(request.state, layer.num_trainable) / 2 +
             layer.num_trainable * size_of(layer.gradient_dtype);
  }
  return total;
}

namespace {

// Sinks state until the plan fits or nothing is left that may sink.
Plan settle(const PlanRequest& request, const std::vector<TileRange>& tiles, Placement& placement) {
  Plan plan = lower_and_allocate(request, placement, tiles);
  for (bool sunk = true; sunk && !plan.fits();) {
    sunk = false;
    for (const Tier tier : {Tier::device, Tier::host}) {
      const TierUse& use = plan.tiers[static_cast<std::size_t>(tier)];
      if (!use.fits() && sink(request, tiles, tier, use.peak - *use.budget, placement)) sunk = true;
    }
    if (sunk) plan = lower_and_allocate(request, placement, tiles);
  }
  return plan;
}

// Ranks must place alike, since the order of their collectives follows from it. Rank 0 has the largest shards: what
// fits there fits everywhere.
Placement placement_of_rank_0(const PlanRequest& request, const std::vector<TileRange>& tiles) {
  PlanRequest first = request;
  first.rank = 0;
  const std::vector<TileRange> its_tiles = cut_tiles(first);
  Placement placement = initial_placement(first, its_tiles);
  settle(first, its_tiles, placement);
  std::vector<Tier> tiers;
  auto its = its_tiles.begin();
  for (auto mine = tiles.begin(); mine != tiles.end(); ++mine) {
    const bool new_layer = mine == tiles.begin() || std::prev(mine)->layer != mine->layer;
    its = new_layer ? std::find_if(its_tiles.begin(), its_tiles.end(), [&](const TileRange& t) { return t.layer == mine->layer; }) : std::next(its);
    tiers.push_back(placement.tiles[static_cast<std::size_t>(its - its_tiles.begin())]);
  }
  placement.tiles = std::move(tiers);
  return placement;
}

}  // namespace

Plan sized_plan(const PlanRequest& request) {
  const std::vector<TileRange> tiles = cut_tiles(request);
  Placement placement = request.rank == 0 ? initial_placement(request, tiles) : placement_of_rank_0(request, tiles);
  return request.rank == 0 ? settle(request, tiles, placement) : lower_and_allocate(request, placement, tiles);
}

Plan build_plan(const PlanRequest& request) {
  Plan plan = sized_plan(request);
  derive_dependencies(plan, plan.step);
  derive_dependencies(plan, plan.evaluation);
  plan.hash = hash_of(plan);
  plan.common_hash = common_hash_of(plan);
  return plan;
}

Plan make_plan(const PlanRequest& request) {
  Plan plan = build_plan(request);
  if (!plan.fits()) throw MemoryError(refusal_text(plan));
  const std::vector<std::string> violations = check_plan(plan);
  if (!violations.empty()) {
    throw Error(fmt::format("[plan] the plan is not sound, which is a bug of Spillway: {} (and {} more)", violations.front(),
                            violations.size() - 1));
  }
  return plan;
}

PlanRequest make_request(const Config& config, const ModelSpec& spec, const std::vector<std::unique_ptr<Layer>>& layers,
                         std::int64_t sequence_length, const ScratchSizes& scratch) {
  PlanRequest request;
  request.shape = {config.micro_batch_size, sequence_length};
  request.channels = spec.channels;
  request.accumulation_steps = config.accumulation_steps;
  request.dtype = config.dtype;
  request.wire = config.communication_dtype;
  request.state = config.optimizer.state;
  request.tile_size = config.spillway.tile_size;
  request.prefetch_depth = config.spillway.prefetch_depth;
  request.placement = config.spillway.placement;
  request.zero_stage = config.zero_stage;
  request.offload_param = config.offload_param.device;
  request.offload_param_ratio = config.offload_param.ratio;
  request.offload_optimizer = config.offload_optimizer.device;
  request.offload_optimizer_ratio = config.offload_optimizer.ratio;
  request.persistence_threshold = config.param_persistence_threshold;
  request.offload_gradients = config.spillway.offload_gradients;
  request.offload_activations = config.offload_activations;
  request.world_size = static_cast<int>(config.world_size);
  request.hpz_partition_size = static_cast<int>(config.hpz_partition_size);
  request.reduce_bucket_size = config.reduce_bucket_size;
  request.allgather_bucket_size = config.allgather_bucket_size;
  request.prefetch_bucket_size = config.prefetch_bucket_size;
  request.max_reuse_distance = config.max_reuse_distance;
  request.overlap_comm = config.overlap_comm;
  request.budgets = {config.spillway.device_memory, config.spillway.host_memory, config.spillway.nvme_memory};
  std::vector<const Layer*> borrowed;
  for (const auto& layer : layers) borrowed.push_back(layer.get());
  request.layers_for = [borrowed, dtype = config.dtype, &scratch](const BatchShape& shape) {
    std::vector<LayerShape> shapes;
    for (const Layer* layer : borrowed) shapes.push_back(describe(*layer, shape, dtype, scratch));
    return shapes;
  };
  request.layers = request.layers_for(request.shape);
  return request;
}

}  // namespace spillway
