#include "plan/ranks.h"

#include <algorithm>
#include <numeric>

namespace spillway {

namespace {

// Bucket sizes are elements that all ranks of a group move together.
std::int64_t elements_per_rank(std::int64_t bucket, std::int64_t ranks) { return std::max<std::int64_t>(1, bucket / ranks); }

ElementRange stretch_of(const ElementRange& whole, std::int64_t size, std::int64_t index) {
  return {std::min(whole.end, whole.begin + index * size), std::min(whole.end, whole.begin + (index + 1) * size)};
}

}  // namespace

std::int64_t CollectivePlan::payload_bytes() const {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0}, [](std::int64_t sum, const Part& part) { return sum + part.bytes; });
}

Partition partition_of(const PlanRequest& request) {
  // Moments that share a scale stay together, so that their values do not depend on how many ranks there are.
  const std::int64_t granule = request.state.moments == MomentFormat::block8 ? kMomentBlock : 1;
  if (request.zero_stage == 0) return {request.world_size, 1, granule};
  return {request.world_size, request.hpz_partition_size > 1 ? request.hpz_partition_size : request.world_size, granule};
}

bool weights_are_sharded(const PlanRequest& request, const LayerShape& layer) {
  return request.zero_stage == 3 && partition_of(request).partition > 1 && layer.num_elements > request.persistence_threshold;
}

std::int64_t prefetch_distance(const PlanRequest& request, const LayerShape& layer) {
  if (!weights_are_sharded(request, layer)) return request.prefetch_depth;
  if (request.prefetch_bucket_size == 0) return 0;
  return std::clamp<std::int64_t>(request.prefetch_bucket_size / std::max<std::int64_t>(1, layer.num_elements), 1, request.prefetch_depth);
}

int add_collective(Plan& plan, CollectivePlan collective) {
  plan.collectives.push_back(std::move(collective));
  return static_cast<int>(plan.collectives.size()) - 1;
}

std::vector<Task> all_gather_shards(Plan& plan, TaskKind kind, int layer, int buffer, Role role, std::int64_t offset, std::int64_t n,
                                    std::int64_t width, bool verdict) {
  const Partition ranks = partition_of(plan.request);
  const std::int64_t size = elements_per_rank(plan.request.allgather_bucket_size, ranks.partition);
  const ElementRange own = ranks.shard(n, plan.request.rank);
  std::vector<Task> tasks;
  for (std::int64_t i = 0; i < ceil_div(padded_shard_size(n, ranks.partition, ranks.granule), size); ++i) {
    CollectivePlan collective{RankGroup::partition, {}, {}, {}};
    for (std::int64_t r = 0; r < ranks.partition; ++r) {
      const ElementRange part = stretch_of(ranks.shard(n, r), size, i);
      collective.parts.push_back({offset + part.begin * width, part.size() * width});
    }
    const std::int64_t received = collective.payload_bytes() - stretch_of(own, size, i).size() * width;
    Task task = make_task(kind, comm_lane(plan.request), layer, -1, received,
                          {part(write_of(plan, buffer, role), offset, offset + n * width)});
    // It overwrites what the others have; its own part it reads, if there is one.
    if (!own.empty()) task.accesses.push_back(part(read_of(plan, buffer, Role::source), offset + own.begin * width, offset + own.end * width));
    if (verdict) task.accesses.push_back(read_of(plan, plan.verdict_buffer, Role::verdict));
    task.collective = add_collective(plan, std::move(collective));
    tasks.push_back(std::move(task));
  }
  return tasks;
}

std::vector<GradientBucket> gradient_buckets(const PlanRequest& request, const LayerPlan& layer) {
  const Partition ranks = partition_of(request);
  const std::int64_t size = elements_per_rank(request.reduce_bucket_size, request.world_size);
  std::int64_t longest = 0;
  for (int r = 0; r < request.world_size; ++r) longest = std::max(longest, ranks.slice(layer.num_trainable, r).size());
  std::vector<GradientBucket> buckets(static_cast<std::size_t>(ceil_div(longest, size)));
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    for (int r = 0; r < request.world_size; ++r) {
      buckets[i].slices.push_back(stretch_of(ranks.slice(layer.num_trainable, r), size, static_cast<std::int64_t>(i)));
    }
  }
  return buckets;
}

}  // namespace spillway
