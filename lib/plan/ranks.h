// How a request's ranks share a layer, and the collectives that follow from it.
#pragma once

#include "plan/builder.h"
#include "spillway/plan.h"
#include "zero/partition.h"

namespace spillway {

// Stage 0 keeps everything on every rank; from stage 1 on, all ranks or the groups asked for share state.
Partition partition_of(const PlanRequest& request);

// Whether each rank keeps only its shard of the layer's 16-bit weights: stage 3, but for small layers.
bool weights_are_sharded(const PlanRequest& request, const LayerShape& layer);

// Whether gradients leave after every micro-batch (stages 2 and 3) rather than once a step.
inline bool reduces_every_micro_batch(const PlanRequest& request) { return request.world_size > 1 && request.zero_stage >= 2; }

// The lane of collectives, and of copies that belong to them.
inline Lane comm_lane(const PlanRequest& request) { return request.overlap_comm ? Lane::comm : Lane::compute; }

// Positions ahead of its use at which a layer's weights are asked for; the same on all ranks.
std::int64_t prefetch_distance(const PlanRequest& request, const LayerShape& layer);

// All-gathers of the elements [first, first + n) of a layer's flat buffer, which the ranks of a group share out as
// shards, in place in `buffer`, bucket after bucket. The elements start at byte `offset` of the buffer, `width` bytes
// each. With `verdict`, they obey the gate.
std::vector<Task> all_gather_shards(Plan& plan, TaskKind kind, int layer, int buffer, Role role, std::int64_t offset, std::int64_t n,
                                    std::int64_t width, bool verdict);

// The parts of all ranks' slices of a layer's gradient that travel together: the `bucket`-th stretch of each.
struct GradientBucket {
  std::vector<ElementRange> slices;  // by rank, elements of the layer
};
std::vector<GradientBucket> gradient_buckets(const PlanRequest& request, const LayerPlan& layer);

int add_collective(Plan& plan, CollectivePlan collective);

}  // namespace spillway
