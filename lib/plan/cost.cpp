#include "spillway/cost.h"

#include <algorithm>

namespace spillway {

namespace {

double lane_rate(const Task& task, const MachineRates& rates) {
  switch (task.lane) {
    case Lane::compute: return rates.device_bytes;
    case Lane::h2d: return rates.h2d_bytes;
    case Lane::d2h: return rates.d2h_bytes;
    case Lane::comm: return rates.comm_bytes;
    case Lane::cpu:
    case Lane::snapshot: return rates.cpu_adam_bytes;
    case Lane::nvme_fetch:
    case Lane::nvme_read:
    case Lane::nvme_write: return writes_nvme(task.kind) ? rates.nvme_write_bytes : rates.nvme_read_bytes;
  }
  return rates.device_bytes;
}

// Members of a group are `stride` ranks apart.
struct Members {
  std::int64_t first, stride;

  std::int64_t rank(std::size_t member) const { return first + static_cast<std::int64_t>(member) * stride; }
};

Members members_of(const Plan& plan, RankGroup group) {
  const std::int64_t partition = plan.partition_size, rank = plan.request.rank;
  switch (group) {
    case RankGroup::world: return {0, 1};
    case RankGroup::partition: return {rank / partition * partition, 1};
    case RankGroup::replicas: return {rank % partition, partition};
  }
  return {0, 1};
}

double collective_seconds(const CollectiveTraffic& traffic, const MachineRates& rates) {
  const double within = static_cast<double>(traffic.rank_bytes) / rates.comm_bytes;
  const double between = rates.network_bytes > 0.0 ? static_cast<double>(traffic.node_bytes) / rates.network_bytes : 0.0;
  return rates.comm_latency_s + (traffic.nodes - 1) * rates.network_latency_s + std::max(within, between);
}

}  // namespace

CollectiveTraffic traffic_of(const Plan& plan, const Task& task, int ranks_per_node) {
  const CollectivePlan& collective = plan.collectives[static_cast<std::size_t>(task.collective)];
  const Members members = members_of(plan, collective.group);
  CollectiveTraffic traffic{task.bytes, 0, 1};
  if (ranks_per_node == 0) return traffic;
  const std::int64_t here = plan.request.rank / ranks_per_node;
  std::int64_t elsewhere = 0, neighbours = 0, last_node = members.rank(0) / ranks_per_node;
  for (std::size_t member = 0; member < collective.parts.size(); ++member) {
    const std::int64_t node = members.rank(member) / ranks_per_node;
    if (node != last_node) ++traffic.nodes;
    last_node = node;
    node == here ? ++neighbours : elsewhere += collective.parts[member].bytes;
  }
  const std::int64_t on_node = std::min<std::int64_t>(ranks_per_node, plan.request.world_size - here * ranks_per_node);
  const bool exchanges = task.kind == TaskKind::reduce_scatter;
  traffic.node_bytes = elsewhere * (exchanges ? on_node : std::max<std::int64_t>(1, on_node / neighbours));
  return traffic;
}

StepTraffic step_traffic(const Plan& plan, int ranks_per_node) {
  StepTraffic sum;
  for (const Task& task : plan.step.tasks) {
    if (!is_collective(task.kind)) continue;
    const CollectivePlan& collective = plan.collectives[static_cast<std::size_t>(task.collective)];
    const bool exchanges = task.kind == TaskKind::reduce_scatter;
    const std::int64_t others = static_cast<std::int64_t>(collective.parts.size()) - 1;
    (exchanges ? sum.reduced : sum.gathered) += task.bytes;
    sum.sent += exchanges ? task.bytes : (collective.payload_bytes() - task.bytes) * others;
    sum.node += traffic_of(plan, task, ranks_per_node).node_bytes;
  }
  return sum;
}

std::vector<double> task_seconds(const Plan& plan, const Program& program, const MachineRates& rates) {
  std::vector<double> seconds;
  seconds.reserve(program.tasks.size());
  for (const Task& task : program.tasks) {
    double time = rates.task_overhead_s + task.flops / rates.matmul_flops;
    if (is_collective(task.kind)) {  // on whatever lane
      time += collective_seconds(traffic_of(plan, task, rates.ranks_per_node), rates);
    } else {
      time += static_cast<double>(task.bytes) / lane_rate(task, rates);
    }
    if (is_nvme(task.lane)) time += rates.nvme_latency_s;
    seconds.push_back(time);
  }
  return seconds;
}

}  // namespace spillway
