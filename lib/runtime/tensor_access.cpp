#include "runtime/tensor_access.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/values.h"
#include "runtime/state_sections.h"
#include "spillway/error.h"

namespace spillway {

namespace {

// Elements [range) of the layer, in an array whose first is element `first` of it.
template <class T>
std::span<T> stretch(std::span<T> values, std::int64_t first, ElementRange range) {
  return values.subspan(static_cast<std::size_t>(range.begin - first), static_cast<std::size_t>(range.size()));
}

std::span<float> section_of(const TileState& tile, OptimizerKind kind, StateSection section) {
  return is_moment(section) ? tile.moments[static_cast<std::size_t>(moment_of(kind, section))] : tile.master;
}

bool keeps_weights(StateSection section) { return section == StateSection::master || section == StateSection::weight; }

}  // namespace

TensorAccess::TensorAccess(const Plan& plan, const std::vector<std::unique_ptr<Layer>>& layers, StateAccess& state, RankLinks* links)
    : plan_(plan), state_(state), directory_(plan, layers, links), is_of_tile_(plan.weights_chunks.size(), false) {
  for (const TilePlan& tile : plan.tiles) is_of_tile_[static_cast<std::size_t>(tile.weights_chunk)] = true;
}

// On all ranks alike, since they have asked for the same.
NamedTensor TensorAccess::open(std::string_view operation, std::string_view name, StateSection section, std::int64_t num_elements,
                               std::span<const float> values) const {
  const NamedTensor tensor = directory_.open({operation, name_of(section), name, section != StateSection::weight, num_elements, values});
  const OptimizerKind kind = plan_.request.state.kind;
  if (!is_moment(section) || moment_of(kind, section) >= 0) return tensor;
  std::vector<std::string_view> kept;
  for (const StateSection other : sections_of(kind, false)) kept.push_back(name_of(other));
  throw ConfigError(fmt::format("[tensor] {} the {} of \"{}\": the optimizer in use, {}, has none; a trained parameter has {} and weight", operation,
                                name_of(section), name, traits_of(kind).name, fmt::join(kept, ", ")));
}

void TensorAccess::read(std::string_view name, StateSection section, std::span<float> out) {
  const NamedTensor tensor = open("read", name, section, static_cast<std::int64_t>(out.size()), {});
  state_.forget();  // a call that failed may have left half a tile
  section == StateSection::weight ? read_weights(tensor, out) : read_state(tensor, section, out);
  state_.forget();
  directory_.share(tensor, out);
}

void TensorAccess::read_state(const NamedTensor& tensor, StateSection section, std::span<float> out) {
  const ElementRange mine = directory_.provided(tensor);
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(tensor.layer)];
  for (int t = layer.first_tile; t < layer.first_tile + layer.num_tiles; ++t) {
    const TilePlan& tile = plan_.tiles[static_cast<std::size_t>(t)];
    const ElementRange part = overlap(mine, {tile.begin, tile.end});
    if (part.empty()) continue;
    std::ranges::copy(stretch(section_of(state_.load(t), plan_.request.state.kind, section), tile.begin, part), stretch(out, tensor.param->offset, part).begin());
  }
}

void TensorAccess::read_weights(const NamedTensor& tensor, std::span<float> out) {
  const ElementRange mine = directory_.provided(tensor);
  const std::int64_t width = size_of(plan_.request.dtype);
  for (std::size_t c = 0; c < plan_.weights_chunks.size(); ++c) {
    const WeightsChunk& chunk = plan_.weights_chunks[c];
    const ElementRange part = overlap(mine, {chunk.begin, chunk.end});
    if (chunk.layer != tensor.layer || part.empty()) continue;
    const std::span<const std::byte> bytes = state_.load_chunk(static_cast<int>(c));
    widen(plan_.request.dtype, bytes.subspan(static_cast<std::size_t>((part.begin - chunk.begin) * width)), stretch(out, tensor.param->offset, part));
  }
}

void TensorAccess::write(std::string_view name, StateSection section, std::span<const float> values) {
  const NamedTensor tensor = open("write", name, section, static_cast<std::int64_t>(values.size()), values);
  state_.forget();
  if (tensor.param->trainable) write_tiles(tensor, section, values);
  if (keeps_weights(section)) write_chunks(tensor, values);
  state_.forget();
}

// On every rank that has the state: replicas write the same.
void TensorAccess::write_tiles(const NamedTensor& tensor, StateSection section, std::span<const float> values) {
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(tensor.layer)];
  for (int t = layer.first_tile; t < layer.first_tile + layer.num_tiles; ++t) {
    const TilePlan& tile = plan_.tiles[static_cast<std::size_t>(t)];
    const ElementRange part = overlap(tensor.range(), {tile.begin, tile.end});
    if (part.empty()) continue;
    std::ranges::copy(stretch(values, tensor.param->offset, part), stretch(section_of(state_.load(t), plan_.request.state.kind, section), tile.begin, part).begin());
    state_.store(t);
    if (keeps_weights(section)) state_.store_weights(t);
  }
}

// Weights whose master is not here: frozen ones, and other ranks' shares of a layer that every rank keeps whole. What
// else a chunk holds is widened and rounded back, which changes nothing.
void TensorAccess::write_chunks(const NamedTensor& tensor, std::span<const float> values) {
  for (std::size_t c = 0; c < plan_.weights_chunks.size(); ++c) {
    const WeightsChunk& chunk = plan_.weights_chunks[c];
    const ElementRange part = overlap(tensor.range(), {chunk.begin, chunk.end});
    if (chunk.layer != tensor.layer || part.empty() || is_of_tile_[c]) continue;
    const std::span<float> all = state_.chunk_values(static_cast<int>(c));
    widen(plan_.request.dtype, state_.load_chunk(static_cast<int>(c)), all);
    std::ranges::copy(stretch(values, tensor.param->offset, part), stretch(all, chunk.begin, part).begin());
    state_.store_chunk(static_cast<int>(c));
  }
}

}  // namespace spillway
