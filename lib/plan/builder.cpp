#include "plan/builder.h"

#include <algorithm>
#include <iterator>

#include "spillway/ops.h"

namespace spillway {

namespace {

Access access(const Plan& plan, int buffer, Role role, bool reads, bool writes) {
  return {buffer, role, reads, writes, 0, plan.buffers[static_cast<std::size_t>(buffer)].bytes};
}

}  // namespace

Access read_of(const Plan& plan, int buffer, Role role) { return access(plan, buffer, role, true, false); }
Access write_of(const Plan& plan, int buffer, Role role) { return access(plan, buffer, role, false, true); }
Access update_of(const Plan& plan, int buffer, Role role) { return access(plan, buffer, role, true, true); }

Access part(Access access, std::int64_t begin, std::int64_t end) {
  access.begin = begin;
  access.end = end;
  return access;
}

Access batch_of(const Plan& plan, int micro_batch) {
  const std::int64_t bytes = plan.request.shape.batch * plan.request.shape.time * 2 * 4;
  return part(read_of(plan, plan.batch_buffer, Role::batch), micro_batch * bytes, (micro_batch + 1) * bytes);
}

int add_buffer(Plan& plan, std::string name, Tier tier, Owner owner, std::int64_t bytes, bool persistent) {
  plan.buffers.push_back({std::move(name), tier, owner, persistent, bytes});
  return static_cast<int>(plan.buffers.size()) - 1;
}

Access square_sums_of(const Plan& plan, const LayerPlan& layer, ElementRange elements, int buffer) {
  const std::int64_t first = layer.first_piece + (elements.begin - layer.slice.begin) / kNormPiece;
  return part(write_of(plan, buffer, Role::square_sums), first * 8, (first + norm_pieces(elements.size())) * 8);
}

Access gradient_at_home(const Plan& plan, int tile, Role role) {
  const TilePlan& t = plan.tiles[static_cast<std::size_t>(tile)];
  const LayerPlan& layer = plan.layers[static_cast<std::size_t>(t.layer)];
  const std::int64_t begin = (t.begin - layer.owned.begin) * size_of(layer.gradient_dtype);
  return part(read_of(plan, layer.gradient_buffer, role), begin, begin + padded_bytes(t, layer.gradient_dtype));
}

std::int64_t activation_bytes(const PlanRequest& request) {
  return request.shape.batch * request.shape.time * request.channels * size_of(request.dtype);
}

Task make_task(TaskKind kind, Lane lane, int layer, int micro_batch, std::int64_t bytes, std::vector<Access> accesses) {
  Task task;
  task.kind = kind;
  task.lane = lane;
  task.layer = layer;
  task.micro_batch = micro_batch;
  task.bytes = bytes;
  task.accesses = std::move(accesses);
  return task;
}

std::size_t Timeline::clamp(std::int64_t position) const {
  return static_cast<std::size_t>(std::clamp<std::int64_t>(position, 0, static_cast<std::int64_t>(positions())));
}

std::size_t Timeline::clamp_last(std::int64_t position) const {
  return static_cast<std::size_t>(std::clamp<std::int64_t>(position, 0, static_cast<std::int64_t>(positions()) - 1));
}

std::vector<Task> Timeline::flatten() && {
  std::vector<Task> tasks;
  const auto append = [&](std::vector<Task>& from) {
    tasks.insert(tasks.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  for (std::size_t u = 0; u < positions(); ++u) {
    append(before_[u]);
    append(at_[u]);
    append(after_[u]);
  }
  append(before_[positions()]);
  return tasks;
}

}  // namespace spillway
