#include "runtime/state_access.h"

#include <algorithm>
#include <array>

#include "base/hash.h"
#include "base/parallel.h"
#include "zero/partition.h"

namespace spillway {

StateAccess::StateAccess(const Plan& plan, PlanMemory& memory, Device& device, SwapStore* store)
    : plan_(plan), memory_(memory), stream_(device.make_stream("state")), channel_(store == nullptr ? nullptr : store->open_channel()) {}

std::byte* StateAccess::state_address(int tile) const {
  const TilePlan& t = plan_.tiles[static_cast<std::size_t>(tile)];
  const int buffer = t.tier == Tier::host ? t.state_buffer : plan_.maintenance_buffer;
  memory_.note_use(buffer, t.state_bytes());
  return memory_.at(buffer);
}

TileState StateAccess::view(int tile) const {
  const TilePlan& t = plan_.tiles[static_cast<std::size_t>(tile)];
  const auto n = static_cast<std::size_t>(t.num_elements());
  std::byte* base = state_address(tile);
  const auto section = [&](int i) { return std::span(reinterpret_cast<float*>(base + i * t.section_bytes()), n); };
  return {section(0), section(1), section(2)};
}

void StateAccess::copy(void* to, const void* from, std::int64_t bytes) {
  stream_->copy(to, from, bytes);
  stream_->synchronize();
}

void StateAccess::wait_for_transfer() {
  while (channel_->in_flight() > 0) channel_->completions(true);
}

TileState StateAccess::fresh(int tile) {
  held_ = tile;
  return view(tile);
}

TileState StateAccess::load(int tile) {
  if (held_ == tile) return view(tile);
  const TilePlan& t = plan_.tiles[static_cast<std::size_t>(tile)];
  if (t.tier == Tier::device) copy(state_address(tile), memory_.at(t.state_buffer), t.state_bytes());
  if (t.tier == Tier::nvme) {
    channel_->read(t.state_extent, state_address(tile), 0);
    wait_for_transfer();
  }
  held_ = tile;
  return view(tile);
}

void StateAccess::store(int tile) {
  const TilePlan& t = plan_.tiles[static_cast<std::size_t>(tile)];
  if (t.tier == Tier::device) copy(memory_.at(t.state_buffer), state_address(tile), t.state_bytes());
  if (t.tier == Tier::nvme) {
    channel_->write(t.state_extent, state_address(tile), 0);
    wait_for_transfer();
  }
}

namespace {

template <class T>
void round_all(std::span<const float> from, std::byte* to) {
  auto* out = reinterpret_cast<T*>(to);
  for (std::size_t i = 0; i < from.size(); ++i) out[i] = from_float<T>(from[i]);
}

void round_all(std::span<const float> from, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::f32: return round_all<float>(from, to);
    case DType::bf16: return round_all<bf16>(from, to);
    case DType::f16: return round_all<f16>(from, to);
  }
}

}  // namespace

void StateAccess::store_weights(int tile) {
  const TilePlan& t = plan_.tiles[static_cast<std::size_t>(tile)];
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(t.layer)];
  const DType dtype = plan_.request.dtype;
  std::int64_t state_bytes = 0;
  for (const TilePlan& other : plan_.tiles) state_bytes = std::max(state_bytes, other.state_bytes());
  std::byte* staged = memory_.at(plan_.maintenance_buffer) + state_bytes;
  memory_.note_use(plan_.maintenance_buffer, state_bytes + t.num_elements() * size_of(dtype));
  round_all(view(tile).master, dtype, staged);
  const std::int64_t bytes = t.num_elements() * size_of(dtype);
  if (layer.weights_tier == Tier::nvme) {
    channel_->write(t.weights_extent, staged, 0);
    wait_for_transfer();
  } else {
    copy(memory_.at(layer.weights_buffer) + t.begin * size_of(dtype), staged, bytes);
  }
}

namespace {

// Calls visit(param, first element within the param, range of the tile) for each parameter the tile holds
// a part of.
template <class Visit>
void for_each_param(const Layer& layer, const TilePlan& tile, Visit visit) {
  for (const ParamSpec& param : layer.params()) {
    const std::int64_t begin = std::max(tile.begin, param.offset);
    const std::int64_t end = std::min(tile.end, param.offset + param.num_elements);
    if (begin < end) visit(param, begin - param.offset, ElementRange{begin - tile.begin, end - tile.begin});
  }
}

}  // namespace

void initialise_state(const Plan& plan, const std::vector<std::unique_ptr<Layer>>& layers, std::uint64_t seed, StateAccess& state) {
  constexpr std::int64_t kPiece = 16 * 1024;
  for (std::size_t t = 0; t < plan.tiles.size(); ++t) {
    const TilePlan& tile = plan.tiles[t];
    const TileState fresh = state.fresh(static_cast<int>(t));
    for_each_param(*layers[static_cast<std::size_t>(tile.layer)], tile, [&](const ParamSpec& param, std::int64_t first, ElementRange range) {
      parallel_for(ceil_div(range.size(), kPiece), [&](std::int64_t piece) {
        const std::int64_t begin = piece * kPiece, count = std::min(kPiece, range.size() - begin);
        initial_values(param, seed, first + begin, fresh.master.subspan(static_cast<std::size_t>(range.begin + begin), static_cast<std::size_t>(count)));
      });
    });
    std::fill(fresh.exp_avg.begin(), fresh.exp_avg.end(), 0.0f);
    std::fill(fresh.exp_avg_sq.begin(), fresh.exp_avg_sq.end(), 0.0f);
    state.store(static_cast<int>(t));
    state.store_weights(static_cast<int>(t));
  }
  state.forget();
}

std::uint64_t hash_state(const Plan& plan, const std::vector<std::unique_ptr<Layer>>& layers, std::int64_t applied_steps,
                         StateAccess& state) {
  struct Named {
    const ParamSpec* param;
    std::size_t layer;
  };
  std::vector<Named> params;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (const ParamSpec& param : layers[l]->params()) params.push_back({&param, l});
  }
  std::sort(params.begin(), params.end(), [](const Named& a, const Named& b) { return a.param->name < b.param->name; });
  state.forget();
  Hasher all;
  for (const Named& named : params) {
    std::array<Hasher, 3> sections;
    const LayerPlan& layer = plan.layers[named.layer];
    for (int t = layer.first_tile; t < layer.first_tile + layer.num_tiles; ++t) {
      const TilePlan& tile = plan.tiles[static_cast<std::size_t>(t)];
      const std::int64_t begin = std::max(tile.begin, named.param->offset);
      const std::int64_t end = std::min(tile.end, named.param->offset + named.param->num_elements);
      if (begin >= end) continue;
      const TileState held = state.load(t);
      const auto range = [&](std::span<const float> s) {
        return std::as_bytes(s.subspan(static_cast<std::size_t>(begin - tile.begin), static_cast<std::size_t>(end - begin)));
      };
      sections[0].add(range(held.master));
      sections[1].add(range(held.exp_avg));
      sections[2].add(range(held.exp_avg_sq));
    }
    all.add(named.param->name);
    for (const Hasher& section : sections) all.add(static_cast<std::int64_t>(section.value()));
  }
  all.add(applied_steps);
  state.forget();
  return all.value();
}

}  // namespace spillway
