#include "runtime/task_actions.h"

#include <cmath>
#include <stdexcept>

#include <fmt/format.h>


namespace spillway {

PlanActions::PlanActions(const Plan& plan, PlanMemory& memory, const std::vector<std::unique_ptr<Layer>>& layers, Device& device,
                         SwapStore* store, Ops& ops, Gate& gate, RankLinks* links, SnapshotReader* snapshots, std::function<std::uint64_t()> flags)
    : plan_(plan),
      memory_(memory),
      layers_(layers),
      device_(device),
      extents_(plan),
      gradients_(plan, memory, device, store, extents_),
      ops_(ops),
      gate_(gate),
      links_(links),
      snapshots_(snapshots),
      ask_flags_(std::move(flags)) {
  std::int64_t pieces = 0;
  for (const LayerPlan& layer : plan.layers) pieces += norm_pieces(layer.slice.size());
  square_sums_.resize(static_cast<std::size_t>(pieces));
  rank_sums_.resize(static_cast<std::size_t>(plan.request.world_size));
}

// Of all ranks. How many have a target is known to all only at the gate, which makes up for the difference.
std::int64_t PlanActions::planned_tokens() const {
  const PlanRequest& request = plan_.request;
  return request.shape.batch * request.shape.time * request.accumulation_steps * request.world_size;
}

void PlanActions::begin_step(std::int64_t counted_tokens, SnapshotSink* sink, bool rehearsal) {
  counted_tokens_ = counted_tokens;
  sinks_[++prepared_runs_ % sinks_.size()] = sink;
  rehearsal_ = rehearsal;
  gradient_scale_ = static_cast<float>(gate_.loss_scale() / static_cast<double>(planned_tokens()));
}

std::span<std::byte> PlanActions::workspace(const Task& task) const {
  const Access* access = find_access(task, Role::workspace);
  return access == nullptr ? std::span<std::byte>() : memory_.bytes(*access);
}

// A step that is not applied changes no state at all.
bool PlanActions::skips(const Task& task) const {
  switch (task.kind) {
    case TaskKind::update_tile:
    case TaskKind::write_tile:
    case TaskKind::publish:
    case TaskKind::write_weights:
    case TaskKind::all_gather_updated: return verdict_.skip;
    default: return false;
  }
}

void PlanActions::enqueue(const Task& task, Stream& stream) {
  memory_.note_use(task);
  if (skips(task)) return;
  switch (task.kind) {
    case TaskKind::forward: return forward(task, stream);
    case TaskKind::backward: return backward(task, stream);
    case TaskKind::accumulate: {
      const Access* target = find_access(task, Role::destination);
      return ops_.accumulate(stream, pointer<float>(task, Role::destination), pointer<const float>(task, Role::source),
                             (target->end - target->begin) / 4);
    }
    case TaskKind::all_gather:
    case TaskKind::all_gather_updated:
    case TaskKind::gather_gradient:
    case TaskKind::reduce_scatter: return collect(task, stream);
    case TaskKind::pack_gradient: return pack(task, stream);
    case TaskKind::sum_gradient: return sum(task, stream);
    case TaskKind::finalize: return ops_.finalize_gradient(stream, finalize_arguments(task));
    case TaskKind::update_tile: return ops_.optimizer_update(stream, optimizer_tile(task), verdict_.update);
    default: return copy(task, stream);
  }
}

void PlanActions::execute(const Task& task) {
  memory_.note_use(task);
  if (skips(task)) return;
  switch (task.kind) {
    case TaskKind::accumulate: {
      const Access* target = find_access(task, Role::destination);
      return accumulate_on_host(pointer<float>(task, Role::destination), pointer<const float>(task, Role::source),
                                (target->end - target->begin) / 4);
    }
    case TaskKind::finalize: return finalize_gradient_on_host(finalize_arguments(task));
    case TaskKind::update_tile: return optimizer_update_parallel(optimizer_tile(task), verdict_.update);
    case TaskKind::exchange_statistics: return exchange(task);
    case TaskKind::gate: return decide(task);
    case TaskKind::snapshot: return take_snapshot(task);
    default: throw std::logic_error(fmt::format("no action on a thread of the host for \"{}\"", name_of(task.kind)));
  }
}

// The lane comes to the first item once a run.
void PlanActions::take_snapshot(const Task& task) {
  if (task.tile == 0) ++snapshot_runs_;
  SnapshotSink* sink = sinks_[snapshot_runs_ % sinks_.size()];
  if (sink != nullptr) snapshots_->copy_out(static_cast<std::size_t>(task.tile), *sink);
}

int PlanActions::start_transfers(const Task& task, SwapChannel& channel, std::uint64_t tag) {
  memory_.note_use(task);
  if (skips(task)) return 0;
  const bool writes = writes_nvme(task.kind);
  const Access& home = *find_access(task, writes ? Role::destination : Role::source);
  std::byte* here = pointer<std::byte>(task, writes ? Role::source : Role::destination);
  const std::span<const int> extents = extents_.within(home);
  for (const int e : extents) {
    std::byte* bytes = here + (plan_.extents[static_cast<std::size_t>(e)].begin - home.begin);
    writes ? channel.write(e, bytes, tag) : channel.read(e, bytes, tag);
  }
  return static_cast<int>(extents.size());
}

void PlanActions::copy(const Task& task, Stream& stream) {
  const Access* from = find_access(task, Role::source);
  const Access* to = find_access(task, Role::destination);
  if (from == nullptr || to == nullptr) throw std::logic_error(fmt::format("no action on a stream for \"{}\"", name_of(task.kind)));
  stream.copy(memory_.bytes(*to).data(), memory_.bytes(*from).data(), from->end - from->begin);
}

void PlanActions::forward(const Task& task, Stream& stream) {
  const BatchShape shape = plan_.request.shape;
  const auto* tokens = pointer<const std::int32_t>(task, Role::batch);
  const std::int32_t* targets = tokens == nullptr ? nullptr : tokens + shape.batch * shape.time;
  layers_[static_cast<std::size_t>(task.layer)]->forward(
      {ops_, stream, shape, pointer<const void>(task, Role::weights), pointer<const void>(task, Role::tied_weights), tokens, targets,
       pointer<const void>(task, Role::x), pointer<void>(task, Role::y), pointer<double>(task, Role::loss), workspace(task)});
}

void PlanActions::backward(const Task& task, Stream& stream) {
  const BatchShape shape = plan_.request.shape;
  const auto* tokens = pointer<const std::int32_t>(task, Role::batch);
  const std::int32_t* targets = tokens == nullptr ? nullptr : tokens + shape.batch * shape.time;
  const bool is_head = find_access(task, Role::loss) != nullptr;
  void* dactivation = pointer<void>(task, is_head ? Role::dx : Role::dy);
  const bool is_first = layers_[static_cast<std::size_t>(task.layer)]->kind() == LayerKind::embedding;
  layers_[static_cast<std::size_t>(task.layer)]->backward(
      {ops_, stream, shape, pointer<const void>(task, Role::weights), pointer<const void>(task, Role::tied_weights), tokens, targets,
       pointer<const void>(task, Role::x), is_head ? nullptr : dactivation, is_first ? nullptr : dactivation,
       pointer<float>(task, Role::gradient), pointer<float>(task, Role::tied_gradient), gradient_scale_,
       pointer<double>(task, Role::loss), workspace(task)});
}

// Enqueues a collective. What the rank is at is noted when it gets to it, not when it is enqueued.
void PlanActions::collect(const Task& task, Stream& stream) {
  const CollectivePlan& collective = plan_.collectives[static_cast<std::size_t>(task.collective)];
  Communicator& group = links_->of(collective.group);
  World* world = &links_->world();
  const std::string_view operation = name_of(task.kind), object = plan_.layers[static_cast<std::size_t>(task.layer)].name;
  stream.call([world, operation, object] { world->note_operation(operation, object); });
  std::byte* to = memory_.at(find_access(task, Role::destination)->buffer);
  if (task.kind != TaskKind::reduce_scatter) return group.all_gather(stream, to, collective.parts);
  group.all_to_all(stream, memory_.at(find_access(task, Role::source)->buffer), collective.parts, to, collective.receive_parts);
}

// Stretches that lie side by side in the gradient, as they do when the bucket is the whole layer, are rounded at once.
void PlanActions::pack(const Task& task, Stream& stream) {
  const CollectivePlan& collective = plan_.collectives[static_cast<std::size_t>(task.collective)];
  const auto* from = pointer<const float>(task, Role::source);
  auto* to = pointer<std::byte>(task, Role::destination);
  const std::vector<ElementRange>& sources = collective.sources;
  for (std::size_t r = 0; r < sources.size();) {
    ElementRange stretch = sources[r];
    const std::int64_t at = collective.parts[r].offset;
    for (++r; r < sources.size() && sources[r].begin == stretch.end; ++r) stretch.end = sources[r].end;
    if (!stretch.empty()) ops_.round(stream, from + stretch.begin, to + at, plan_.request.wire, stretch.size());
  }
}

void PlanActions::sum(const Task& task, Stream& stream) {
  const Access* out = find_access(task, Role::destination);
  ops_.sum_pieces(stream, {pointer<const void>(task, Role::source), plan_.request.wire, plan_.request.world_size, (out->end - out->begin) / 4,
                           pointer<float>(task, Role::destination), out->reads});
}

FinalizeGradient PlanActions::finalize_arguments(const Task& task) const {
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(task.layer)];
  const Access* bytes = find_access(task, Role::gradient);
  auto* out = memory_.bytes(*bytes).data();
  const auto* accumulated = pointer<const float>(task, Role::source);  // absent: in place
  return {accumulated == nullptr ? reinterpret_cast<const float*>(out) : accumulated, out, pointer<double>(task, Role::square_sums),
          plan_.request.wire, layer.gradient_dtype, (bytes->end - bytes->begin) / size_of(layer.gradient_dtype)};
}

OptimizerTile PlanActions::optimizer_tile(const Task& task) const {
  const TilePlan& plan = plan_.tiles[static_cast<std::size_t>(task.tile)];
  OptimizerTile tile = tile_at(pointer<std::byte>(task, Role::state), plan.layout);
  tile.gradient = pointer<const void>(task, Role::gradient);
  tile.gradient_dtype = plan_.layers[static_cast<std::size_t>(task.layer)].gradient_dtype;
  tile.weight = pointer<void>(task, Role::new_weights);
  tile.weight_dtype = plan_.request.dtype;
  tile.position = model_position(plan.layer, plan.begin);
  return tile;
}

}  // namespace spillway
