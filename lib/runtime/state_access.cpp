#include "runtime/state_access.h"

#include <algorithm>

#include "base/parallel.h"
#include "base/values.h"
#include "runtime/param_ranges.h"
#include "runtime/state_sections.h"
#include "zero/partition.h"

namespace spillway {

StateAccess::StateAccess(const Plan& plan, PlanMemory& memory, Device& device, SwapStore* store)
    : plan_(plan), memory_(memory), stream_(device.make_stream("state")), channel_(store == nullptr ? nullptr : store->open_channel(IoPriority::streaming)) {}

std::byte* StateAccess::state_address(int tile) const {
  const TilePlan& t = plan_.tiles[static_cast<std::size_t>(tile)];
  const int buffer = t.tier == Tier::host ? t.state_buffer : plan_.maintenance_buffer;
  memory_.note_use(buffer, t.state_bytes());
  return memory_.at(buffer);
}

TileState StateAccess::view(int tile) const {
  const TilePlan& t = plan_.tiles[static_cast<std::size_t>(tile)];
  const auto n = static_cast<std::size_t>(t.num_elements());
  const OptimizerTile held = tile_at(state_address(tile), t.layout);
  TileState state{{held.master, n}, {}};
  const bool in_place = t.layout.format.moments == MomentFormat::f32;
  const std::int64_t end = plan_.buffers[static_cast<std::size_t>(plan_.maintenance_buffer)].bytes - plan_.maintenance_weights_bytes;
  if (!in_place && t.layout.format.num_moments() > 0) memory_.note_use(plan_.maintenance_buffer, end);
  std::byte* decoded = memory_.at(plan_.maintenance_buffer) + end - plan_.maintenance_moments_bytes;
  for (int m = 0; m < t.layout.format.num_moments(); ++m) {
    void* values = in_place ? held.moments[static_cast<std::size_t>(m)] : decoded + m * round_up(t.num_elements() * 4, 4096);
    state.moments[static_cast<std::size_t>(m)] = {static_cast<float*>(values), n};
  }
  return state;
}

// Stretches of whole blocks, side by side.
template <class Convert>
void StateAccess::convert_moments(int tile, Convert convert) const {
  constexpr std::int64_t kStretch = 64 * 1024;
  const StateFormat& format = plan_.request.state;
  if (format.moments == MomentFormat::f32) return;
  const TileState state = view(tile);
  const OptimizerTile kept = tile_at(state_address(tile), plan_.tiles[static_cast<std::size_t>(tile)].layout);
  parallel_for(ceil_div(kept.n, kStretch), [&](std::int64_t s) {
    const std::int64_t first = s * kStretch, n = std::min(kStretch, kept.n - first);
    const OptimizerTile part = part_of(kept, first, n);
    for (std::size_t m = 0; m < static_cast<std::size_t>(format.num_moments()); ++m) {
      convert(traits_of(format.kind).moments[m].law, part.moments[m], part.scales[m],
              state.moments[m].subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)));
    }
  });
}

void StateAccess::decode(int tile) const {
  convert_moments(tile, [&](MomentLaw law, void* kept, std::uint8_t* scales, std::span<float> values) {
    decode_moments(plan_.request.state.moments, law, kept, scales, values);
  });
}

void StateAccess::encode(int tile) const {
  convert_moments(tile, [&](MomentLaw law, void* kept, std::uint8_t* scales, std::span<float> values) {
    encode_moments(plan_.request.state.moments, law, values, kept, scales);
  });
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
  decode(tile);
  held_ = tile;
  return view(tile);
}

void StateAccess::store(int tile) {
  const TilePlan& t = plan_.tiles[static_cast<std::size_t>(tile)];
  encode(tile);
  if (t.tier == Tier::device) copy(memory_.at(t.state_buffer), state_address(tile), t.state_bytes());
  if (t.tier == Tier::nvme) {
    channel_->write(t.state_extent, state_address(tile), 0);
    wait_for_transfer();
  }
}

// Behind the largest state of a tile.
std::byte* StateAccess::rounded_weights() const {
  return memory_.at(plan_.maintenance_buffer) + plan_.buffers[static_cast<std::size_t>(plan_.maintenance_buffer)].bytes - plan_.maintenance_weights_bytes;
}

void StateAccess::round_and_store(int chunk, std::span<const float> values) {
  const WeightsChunk& c = plan_.weights_chunks[static_cast<std::size_t>(chunk)];
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(c.layer)];
  const std::int64_t width = size_of(plan_.request.dtype), bytes = c.num_elements() * width;
  std::byte* staged = rounded_weights();
  memory_.note_use(plan_.maintenance_buffer, plan_.buffers[static_cast<std::size_t>(plan_.maintenance_buffer)].bytes - plan_.maintenance_weights_bytes + bytes);
  narrow(plan_.request.dtype, values, {staged, static_cast<std::size_t>(bytes)});
  if (c.extent >= 0) {
    channel_->write(c.extent, staged, 0);
    wait_for_transfer();
  } else {
    copy(memory_.at(layer.weights_buffer) + layer.weights_offset(c.begin, width), staged, bytes);
  }
}

void StateAccess::store_weights(int tile) {
  round_and_store(plan_.tiles[static_cast<std::size_t>(tile)].weights_chunk, view(tile).master);
}

std::span<float> StateAccess::chunk_values(int chunk) {
  forget();
  const auto n = static_cast<std::size_t>(plan_.weights_chunks[static_cast<std::size_t>(chunk)].num_elements());
  memory_.note_use(plan_.maintenance_buffer, static_cast<std::int64_t>(n) * 4);
  return {reinterpret_cast<float*>(memory_.at(plan_.maintenance_buffer)), n};
}

void StateAccess::store_chunk(int chunk) { round_and_store(chunk, chunk_values(chunk)); }

std::span<const std::byte> StateAccess::load_chunk(int chunk) {
  const WeightsChunk& c = plan_.weights_chunks[static_cast<std::size_t>(chunk)];
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(c.layer)];
  const std::int64_t width = size_of(plan_.request.dtype), bytes = c.num_elements() * width;
  std::byte* staged = rounded_weights();
  if (c.extent >= 0) {
    channel_->read(c.extent, staged, 0);
    wait_for_transfer();
  } else {
    copy(staged, memory_.at(layer.weights_buffer) + layer.weights_offset(c.begin, width), bytes);
  }
  return {staged, static_cast<std::size_t>(bytes)};
}

SeedSource::SeedSource(const std::vector<std::unique_ptr<Layer>>& layers, std::uint64_t seed) : seed_(seed) {
  for (const auto& layer : layers) {
    for (const ParamSpec& param : layer->params()) params_.emplace(param.name, &param);
  }
}

void SeedSource::read(const std::string& param, StateSection section, std::int64_t begin, std::span<float> out) {
  constexpr std::int64_t kPiece = 16 * 1024;
  if (is_moment(section)) {
    std::fill(out.begin(), out.end(), 0.0f);
    return;
  }
  const ParamSpec& spec = *params_.find(param)->second;
  const auto n = static_cast<std::int64_t>(out.size());
  parallel_for(ceil_div(n, kPiece), [&](std::int64_t piece) {
    const std::int64_t first = piece * kPiece, count = std::min(kPiece, n - first);
    initial_values(spec, seed_, begin + first, out.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
  });
}

void initialise_state(const Plan& plan, const std::vector<std::unique_ptr<Layer>>& layers, StateSource& source, StateAccess& state) {
  const auto fill = [&](int layer, ElementRange stretch, StateSection section, std::span<float> values) {
    for_each_param(*layers[static_cast<std::size_t>(layer)], stretch, [&](const ParamSpec& param, std::int64_t first, ElementRange range) {
      source.read(param.name, section, first, values.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size())));
    });
  };
  std::vector<bool> filled(plan.weights_chunks.size(), false);
  for (std::size_t t = 0; t < plan.tiles.size(); ++t) {
    const TilePlan& tile = plan.tiles[t];
    const TileState fresh = state.fresh(static_cast<int>(t));
    const ElementRange stretch{tile.begin, tile.end};
    fill(tile.layer, stretch, StateSection::master, fresh.master);
    const auto moments = sections_of(plan.request.state.kind, false).subspan(1);
    for (std::size_t m = 0; m < moments.size(); ++m) fill(tile.layer, stretch, moments[m], fresh.moments[m]);
    state.store(static_cast<int>(t));
    state.store_weights(static_cast<int>(t));
    filled[static_cast<std::size_t>(tile.weights_chunk)] = true;
  }
  for (std::size_t c = 0; c < plan.weights_chunks.size(); ++c) {
    if (filled[c]) continue;
    const WeightsChunk& chunk = plan.weights_chunks[c];
    fill(chunk.layer, {chunk.begin, chunk.end}, StateSection::weight, state.chunk_values(static_cast<int>(c)));
    state.store_chunk(static_cast<int>(c));
  }
  state.forget();
}

}  // namespace spillway
