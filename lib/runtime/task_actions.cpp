#include "runtime/task_actions.h"

#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include "base/parallel.h"
#include "zero/partition.h"

namespace spillway {

namespace {

// Elements a thread updates at a time; a multiple of every vector width.
constexpr std::int64_t kUpdatePiece = 32 * 1024;

}  // namespace

PlanActions::PlanActions(const Plan& plan, PlanMemory& memory, const std::vector<std::unique_ptr<Layer>>& layers, Device& device,
                         Ops& ops, Gate& gate)
    : plan_(plan), memory_(memory), layers_(layers), device_(device), ops_(ops), gate_(gate) {
  std::int64_t pieces = 0;
  for (const LayerPlan& layer : plan.layers) pieces += norm_pieces(layer.num_elements);
  square_sums_.resize(static_cast<std::size_t>(pieces));
}

void PlanActions::begin_step(std::int64_t counted_tokens, bool rehearsal) {
  counted_tokens_ = counted_tokens;
  rehearsal_ = rehearsal;
  gradient_scale_ = static_cast<float>(gate_.loss_scale() / static_cast<double>(counted_tokens));
}

template <class T>
T* PlanActions::pointer(const Task& task, Role role) const {
  const Access* access = find_access(task, role);
  return access == nullptr ? nullptr : reinterpret_cast<T*>(memory_.bytes(*access).data());
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
    case TaskKind::write_weights: return verdict_.skip;
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
    case TaskKind::finalize: return ops_.finalize_gradient(stream, finalize_arguments(task));
    case TaskKind::update_tile: return ops_.adam(stream, adam_tile(task), verdict_.adam);
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
    case TaskKind::update_tile: return update_on_host(task);
    case TaskKind::gate: return decide(task);
    default: throw std::logic_error(fmt::format("no action on the cpu lane for \"{}\"", name_of(task.kind)));
  }
}

int PlanActions::start_transfers(const Task& task, SwapChannel& channel, std::uint64_t tag) {
  memory_.note_use(task);
  if (skips(task)) return 0;
  const auto first_extent = [&](const TilePlan& tile) { return task.kind == TaskKind::write_weights || task.kind == TaskKind::read_weights ? tile.weights_extent : tile.state_extent; };
  if (task.lane == Lane::nvme_write) {
    channel.write(first_extent(plan_.tiles[static_cast<std::size_t>(task.tile)]), pointer<const std::byte>(task, Role::source), tag);
    return 1;
  }
  std::byte* target = pointer<std::byte>(task, Role::destination);
  if (task.kind == TaskKind::read_tile) {
    channel.read(first_extent(plan_.tiles[static_cast<std::size_t>(task.tile)]), target, tag);
    return 1;
  }
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(task.layer)];
  for (int t = layer.first_tile; t < layer.first_tile + layer.num_tiles; ++t) {
    const TilePlan& tile = plan_.tiles[static_cast<std::size_t>(t)];
    channel.read(first_extent(tile), target + tile.begin * size_of(plan_.request.dtype), tag);
  }
  return layer.num_tiles;
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

FinalizeGradient PlanActions::finalize_arguments(const Task& task) const {
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(task.layer)];
  auto* out = pointer<void>(task, Role::gradient);
  const auto* accumulated = pointer<const float>(task, Role::source);  // absent: in place
  return {accumulated == nullptr ? static_cast<const float*>(out) : accumulated, out, pointer<double>(task, Role::square_sums),
          plan_.request.wire, layer.gradient_dtype, layer.num_elements};
}

AdamTile PlanActions::adam_tile(const Task& task) const {
  const TilePlan& tile = plan_.tiles[static_cast<std::size_t>(task.tile)];
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(task.layer)];
  std::byte* state = pointer<std::byte>(task, Role::state);
  const std::int64_t section = tile.section_bytes();
  return {reinterpret_cast<float*>(state),
          reinterpret_cast<float*>(state + section),
          reinterpret_cast<float*>(state + 2 * section),
          pointer<const void>(task, Role::gradient),
          layer.gradient_dtype,
          pointer<void>(task, Role::new_weights),
          plan_.request.dtype,
          tile.num_elements()};
}

void PlanActions::update_on_host(const Task& task) const {
  const AdamTile tile = adam_tile(task);
  parallel_for(ceil_div(tile.n, kUpdatePiece), [&](std::int64_t piece) {
    const std::int64_t begin = piece * kUpdatePiece;
    AdamTile part = tile;
    part.master += begin;
    part.exp_avg += begin;
    part.exp_avg_sq += begin;
    part.gradient = static_cast<const std::byte*>(tile.gradient) + begin * size_of(tile.gradient_dtype);
    part.weight = static_cast<std::byte*>(tile.weight) + begin * size_of(tile.weight_dtype);
    part.n = std::min(kUpdatePiece, tile.n - begin);
    adam_update(part, verdict_.adam);
  });
}

// Gathers the square sums of all layers in order, wherever they were taken, and decides.
void PlanActions::decide(const Task& task) {
  const auto* statistics = pointer<const double>(task, Role::square_sums);
  const auto* host_sums = pointer<const double>(task, Role::host_square_sums);
  std::size_t at = 0;
  for (const LayerPlan& layer : plan_.layers) {
    const double* sums = (layer.square_sums_on_host ? host_sums : statistics) + layer.first_piece;
    for (std::int64_t i = 0; i < norm_pieces(layer.num_elements); ++i) square_sums_[at++] = sums[i];
  }
  double loss_sum = 0.0;
  for (std::int64_t m = 0; m < plan_.request.accumulation_steps; ++m) loss_sum += statistics[m];
  if (rehearsal_) {
    verdict_ = GateVerdict{};
  } else {
    verdict_ = gate_.decide(loss_sum, counted_tokens_, square_sums_);
    if (verdict_.first_bad_piece >= 0) first_bad_tensor_ = tensor_of_bad_piece(task);
  }
  gate_ns_ = device_.now_ns();
}

std::vector<std::byte> PlanActions::gradient_piece(const Access& access, std::int64_t begin, std::int64_t end) const {
  std::vector<std::byte> piece(static_cast<std::size_t>(end - begin));
  const std::unique_ptr<Stream> stream = device_.make_stream("gate");
  stream->copy(piece.data(), memory_.bytes(access).data() + begin, end - begin);
  stream->synchronize();
  return piece;
}

// The tensor of the first value that is not finite: its piece is known, the value is looked for.
std::string PlanActions::tensor_of_bad_piece(const Task& task) const {
  std::int64_t piece = verdict_.first_bad_piece;
  std::size_t l = 0;
  for (; piece >= norm_pieces(plan_.layers[l].num_elements); ++l) piece -= norm_pieces(plan_.layers[l].num_elements);
  const LayerPlan& layer = plan_.layers[l];
  const Access* gradient = nullptr;
  for (std::size_t i = 0, seen = 0; i < task.accesses.size(); ++i) {
    if (task.accesses[i].role == Role::gradient && seen++ == l) gradient = &task.accesses[i];
  }
  const std::int64_t begin = piece * kNormPiece, end = std::min(begin + kNormPiece, layer.num_elements);
  const std::int64_t width = size_of(layer.gradient_dtype);
  const std::vector<std::byte> bytes = gradient_piece(*gradient, begin * width, end * width);
  const auto value = [&](std::int64_t i) {
    if (layer.gradient_dtype == DType::f32) return reinterpret_cast<const float*>(bytes.data())[i];
    const auto bits = reinterpret_cast<const std::uint16_t*>(bytes.data())[i];
    return layer.gradient_dtype == DType::bf16 ? to_float(bf16{bits}) : to_float(f16{bits});
  };
  std::int64_t element = begin;
  while (element + 1 < end && std::isfinite(value(element - begin))) ++element;
  for (const ParamSpec& param : layers_[l]->params()) {
    if (element >= param.offset && element < param.offset + param.num_elements) return param.name;
  }
  return layer.name;
}

}  // namespace spillway
