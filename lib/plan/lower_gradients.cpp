#include "plan/lower_gradients.h"

#include <algorithm>

#include <fmt/format.h>

#include "spillway/ops.h"

namespace spillway {

GradientLowering::GradientLowering(Plan& plan, Timeline& timeline, int statistics)
    : plan_(plan), request_(plan.request), timeline_(timeline), statistics_(statistics), stream_(plan, timeline), accumulators_(plan.layers.size(), -1) {}

void GradientLowering::start_micro_batch() {
  gradients_.assign(plan_.layers.size(), -1);
  stream_.flush();
}

int GradientLowering::gradient_of(std::size_t l, int micro_batch) {
  if (gradients_[l] < 0) {
    gradients_[l] = add_transient(plan_, fmt::format("f32 gradient of {}, micro-batch {}", plan_.layers[l].name, micro_batch), Tier::device,
                                  Owner::gradients, plan_.layers[l].num_elements * 4);
  }
  return gradients_[l];
}

void GradientLowering::after_backward(std::size_t u, int l, int micro_batch) {
  const LayerPlan& target = layer(l);
  if (target.num_trainable == 0) return;
  const auto index = static_cast<std::size_t>(l);
  const int gradient = gradients_[index];
  if (reduces_every_micro_batch(request_)) {
    if (target.square_sums_on_host) return accumulate_on_host(u, l, micro_batch, reduce(u, l, micro_batch, gradient, -1));
    accumulators_[index] = reduce(u, l, micro_batch, gradient, accumulators_[index]);
    if (is_last(micro_batch)) finalize(u, l, accumulators_[index]);
    return;
  }
  if (target.square_sums_on_host) return accumulate_on_host(u, l, micro_batch, gradient);
  if (micro_batch == 0) {
    accumulators_[index] = gradient;
  } else {
    const std::int64_t bytes = target.num_trainable * 4;
    timeline_.at(u, make_task(TaskKind::accumulate, Lane::compute, l, micro_batch, bytes * 3,
                              {part(update_of(plan_, accumulators_[index], Role::destination), 0, bytes),
                               part(read_of(plan_, gradient, Role::source), 0, bytes)}));
  }
  if (!is_last(micro_batch)) return;
  finalize(u, l, request_.world_size > 1 ? reduce(u, l, micro_batch, accumulators_[index], -1) : accumulators_[index]);
}

// Rounds what each rank reduces of a bucket to the wire dtype, rank after rank.
Task GradientLowering::pack(int l, int micro_batch, int gradient, const GradientBucket& bucket, int send, CollectivePlan& collective) {
  const std::int64_t width = size_of(request_.wire);
  std::int64_t at = 0;
  for (const ElementRange& slice : bucket.slices) {
    collective.parts.push_back({at, slice.size() * width});
    collective.sources.push_back(slice);
    at += slice.size() * width;
  }
  return make_task(TaskKind::pack_gradient, Lane::compute, l, micro_batch, at / width * (4 + width),
                   {part(read_of(plan_, gradient, Role::source), 0, layer(l).num_trainable * 4), write_of(plan_, send, Role::destination)});
}

// The sum over all ranks of this rank's slice, f32, into a buffer of that size: added to `into`, or a new one if it is
// -1. Bucket after bucket; the sum of one is taken when the next is on its way, the last one under the backward
// that follows.
int GradientLowering::reduce(std::size_t u, int l, int micro_batch, int gradient, int into) {
  const LayerPlan& target = layer(l);
  const std::int64_t width = size_of(request_.wire);
  const bool adds = into >= 0;
  if (!adds) {
    into = add_transient(plan_, fmt::format("f32 gradient of {}, this rank's slice, micro-batch {}", target.name, micro_batch), Tier::device,
                         Owner::gradients, target.slice.size() * 4);
  }
  std::vector<Task> sums;
  for (const GradientBucket& bucket : gradient_buckets(request_, target)) {
    const ElementRange own = bucket.slices[static_cast<std::size_t>(request_.rank)];
    std::int64_t sent = 0;
    for (const ElementRange& slice : bucket.slices) sent += slice.size() * width;
    const int send = add_transient(plan_, fmt::format("bucket of {}, to other ranks", target.name), Tier::device, Owner::communication, sent);
    const int receive = add_transient(plan_, fmt::format("bucket of {}, from other ranks", target.name), Tier::device, Owner::communication,
                                      own.size() * width * request_.world_size);
    CollectivePlan collective{RankGroup::world, {}, {}, {}};
    Task packing = pack(l, micro_batch, gradient, bucket, send, collective);
    for (int r = 0; r < request_.world_size; ++r) collective.receive_parts.push_back({r * own.size() * width, own.size() * width});
    Task exchange = make_task(TaskKind::reduce_scatter, comm_lane(request_), l, micro_batch, sent - own.size() * width,
                              {read_of(plan_, send, Role::source), write_of(plan_, receive, Role::destination)});
    packing.collective = exchange.collective = add_collective(plan_, std::move(collective));
    timeline_.at(u, std::move(packing));
    timeline_.at(u, std::move(exchange));
    const std::int64_t begin = (own.begin - target.slice.begin) * 4, end = (own.end - target.slice.begin) * 4;
    sums.push_back(make_task(TaskKind::sum_gradient, Lane::compute, l, micro_batch, own.size() * (width * request_.world_size + 4),
                             {read_of(plan_, receive, Role::source),
                              part(adds ? update_of(plan_, into, Role::destination) : write_of(plan_, into, Role::destination), begin, end)}));
    // What is sent keeps its memory for as long: handed on at once, it would hold up whoever gets it, on the compute
    // lane, until the exchange is over.
    sums.back().accesses.push_back(read_of(plan_, send, Role::source));
    if (sums.size() > 1) timeline_.at(u, std::move(sums[sums.size() - 2]));
  }
  if (!sums.empty()) timeline_.after(static_cast<std::int64_t>(u) + 1, std::move(sums.back()));
  return into;
}

// The f32 values of each micro-batch cross the link and are added on the host.
void GradientLowering::accumulate_on_host(std::size_t u, int l, int micro_batch, int values) {
  const auto index = static_cast<std::size_t>(l);
  const LayerPlan& target = layer(l);
  const std::int64_t bytes = target.slice.size() * 4;
  // Behind the sum over ranks, where there is one.
  const auto later = static_cast<std::int64_t>(u) + (request_.world_size > 1 ? 2 : 1);
  if (target.gradient_tier == Tier::nvme) return stream_.accumulate(later, l, micro_batch, values);
  const int landing = add_transient(plan_, fmt::format("f32 gradient of {} on the host, micro-batch {}", target.name, micro_batch),
                                    Tier::host, Owner::gradients, bytes);
  timeline_.after(later, make_task(TaskKind::drain_partial, Lane::d2h, l, micro_batch, bytes,
                                   {part(read_of(plan_, values, Role::source), 0, bytes), write_of(plan_, landing, Role::destination)}));
  if (micro_batch == 0) {
    accumulators_[index] = landing;
  } else {
    timeline_.after(later + 1, make_task(TaskKind::accumulate, Lane::cpu, l, micro_batch, bytes * 3,
                                         {update_of(plan_, accumulators_[index], Role::destination), read_of(plan_, landing, Role::source)}));
  }
  if (!is_last(micro_batch)) return;
  Task task = make_task(TaskKind::finalize, Lane::cpu, l, micro_batch, bytes * 2, {update_of(plan_, accumulators_[index], Role::gradient)});
  task.accesses.push_back(square_sums_of(plan_, target, target.slice, plan_.host_square_sums_buffer));
  timeline_.after(later + 1, std::move(task));
  plan_.layers[index].gradient_buffer = accumulators_[index];
}

// Rounds this rank's slice to the wire dtype; ranks that hold the same shard exchange theirs; and off to the host if
// the optimizer runs there.
void GradientLowering::finalize(std::size_t u, int l, int accumulated) {
  const LayerPlan& target = layer(l);
  const auto index = static_cast<std::size_t>(l);
  const int m = static_cast<int>(request_.accumulation_steps) - 1;
  const std::int64_t width = size_of(target.gradient_dtype);
  const std::int64_t wire_bytes = target.owned.size() * width;
  const std::int64_t begin = (target.slice.begin - target.owned.begin) * width, end = begin + target.slice.size() * width;
  const int wire = add_transient(plan_, fmt::format("gradient of {}", target.name), Tier::device, Owner::gradients, wire_bytes);
  const auto position = static_cast<std::int64_t>(u) + (request_.world_size > 1 ? 1 : 0);
  Task task = make_task(TaskKind::finalize, Lane::compute, l, m, target.slice.size() * (4 + width),
                        {part(read_of(plan_, accumulated, Role::source), 0, target.slice.size() * 4),
                         part(write_of(plan_, wire, Role::gradient), begin, end)});
  task.accesses.push_back(square_sums_of(plan_, target, target.slice, statistics_));
  request_.world_size > 1 ? timeline_.after(position, std::move(task)) : timeline_.at(u, std::move(task));
  const Partition ranks = partition_of(request_);
  if (ranks.replicas() > 1) {
    CollectivePlan collective{RankGroup::replicas, {}, {}, {}};
    for (std::int64_t q = 0; q < ranks.replicas(); ++q) {
      const ElementRange slice = ranks.slice(target.num_trainable, q * ranks.partition + request_.rank % ranks.partition);
      collective.parts.push_back({(slice.begin - target.owned.begin) * width, slice.size() * width});
    }
    Task gather = make_task(TaskKind::gather_gradient, comm_lane(request_), l, m, wire_bytes - (end - begin),
                            {write_of(plan_, wire, Role::destination)});
    if (begin < end) gather.accesses.push_back(part(read_of(plan_, wire, Role::source), begin, end));
    gather.collective = add_collective(plan_, std::move(collective));
    timeline_.after(position, std::move(gather));
  }
  if (target.gradient_tier == Tier::nvme) return stream_.store(position + 1, l, wire);
  plan_.layers[index].gradient_buffer = wire;
  if (target.update_on_device) return;
  const int landed = add_transient(plan_, fmt::format("gradient of {} on the host", target.name), Tier::host, Owner::gradients, wire_bytes);
  timeline_.after(position + 1, make_task(TaskKind::drain_gradient, Lane::d2h, l, m, wire_bytes,
                                          {read_of(plan_, wire, Role::source), write_of(plan_, landed, Role::destination)}));
  plan_.layers[index].gradient_buffer = landed;
}

}  // namespace spillway
