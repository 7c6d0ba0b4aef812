#include <fmt/format.h>

#include "plan/lower.h"
#include "plan/ranks.h"
#include "spillway/ops.h"

namespace spillway {

namespace {

int add_extent(Plan& plan, std::string name, int buffer, std::int64_t begin, std::int64_t bytes) {
  plan.extents.push_back({std::move(name), buffer, begin, bytes});
  return static_cast<int>(plan.extents.size()) - 1;
}

void add_layer(const Placement& placement, std::size_t index, Plan& plan) {
  const PlanRequest& request = plan.request;
  const LayerShape& shape = request.layers[index];
  const Partition ranks = partition_of(request);
  LayerPlan layer{};
  layer.name = shape.name;
  layer.num_elements = shape.num_elements;
  layer.num_trainable = shape.num_elements - shape.num_frozen;
  layer.weights_tier = placement.weights[index];
  layer.resident = layer.weights_tier == Tier::device && !weights_are_sharded(request, shape);
  layer.owned = ranks.shard(layer.num_trainable, request.rank);
  layer.slice = ranks.slice(layer.num_trainable, request.rank);
  layer.frozen = {layer.num_trainable, layer.num_elements};
  if (weights_are_sharded(request, shape)) {
    const ElementRange part = ranks.shard(shape.num_frozen, request.rank);
    layer.frozen = {layer.num_trainable + part.begin, layer.num_trainable + part.end};
  }
  const std::int64_t width = size_of(request.dtype);
  layer.frozen_offset = layer.resident ? layer.num_trainable * width : round_up(layer.owned.size() * width, 4096);
  layer.update_on_device = placement.update_on_device[index];
  layer.square_sums_on_host = placement.accumulate_on_host && !layer.update_on_device;
  layer.gradient_tier = layer.update_on_device ? Tier::device : placement.gradients_on_nvme[index] ? Tier::nvme : Tier::host;
  layer.gradient_dtype = layer.square_sums_on_host ? DType::f32 : request.wire;
  layer.gradient_buffer = -1;
  // Every block's input leaves but the last one's, whose backward follows at once.
  layer.activation_tier = index + 3 < request.layers.size() ? tier_of(request.offload_activations) : Tier::device;
  layer.activation_buffer = -1;
  layer.first_tile = static_cast<int>(plan.tiles.size());
  // Every tile, and so the frozen part, starts on a page; the last of each is padded to one.
  std::int64_t bytes = layer.num_elements * width;
  if (!layer.resident) bytes = layer.frozen.empty() ? layer.owned.size() * width : layer.frozen_offset + layer.frozen.size() * width;
  if (layer.weights_tier == Tier::nvme) bytes = round_up(bytes, 4096);
  layer.weights_buffer = add_persistent(plan, fmt::format("weights of {}", shape.name), layer.weights_tier, Owner::weights, bytes);
  plan.layers.push_back(layer);
}

void add_tile(const Placement& placement, const TileRange& range, std::size_t index, Plan& plan) {
  LayerPlan& layer = plan.layers[static_cast<std::size_t>(range.layer)];
  const int number = layer.num_tiles++;
  if (number == 0) layer.first_tile = static_cast<int>(index);
  TilePlan tile{range.layer, range.elements.begin, range.elements.end, placement.tiles[index], -1, -1, -1, -1,
                state_layout(plan.request.state, range.elements.size())};
  tile.state_buffer = add_persistent(plan, fmt::format("state of tile {} of {}", number, layer.name), tile.tier,
                                     Owner::optimizer_state, tile.state_bytes());
  if (tile.tier == Tier::nvme) {
    tile.state_extent = add_extent(plan, fmt::format("tile {} of {}", number, layer.name), tile.state_buffer, 0,
                                   tile.state_bytes());
  }
  plan.tiles.push_back(tile);
}

// Cuts a stretch of a layer's weights into chunks of at most a tile.
void add_chunks(Plan& plan, std::size_t l, ElementRange stretch) {
  const LayerPlan& layer = plan.layers[l];
  const std::int64_t width = size_of(plan.request.dtype);
  for (std::int64_t t = 0; t < num_tiles(stretch.size(), plan.request.tile_size); ++t) {
    const ElementRange range = tile_range(stretch.size(), plan.request.tile_size, t);
    WeightsChunk chunk{static_cast<int>(l), stretch.begin + range.begin, stretch.begin + range.end, -1};
    const bool of_tile = stretch == layer.owned && chunk.begin < layer.num_trainable;
    const auto tile = static_cast<std::size_t>(layer.first_tile) + static_cast<std::size_t>(t);
    if (of_tile) plan.tiles[tile].weights_chunk = static_cast<int>(plan.weights_chunks.size());
    if (layer.weights_tier == Tier::nvme) {
      chunk.extent = add_extent(plan, fmt::format("{}weights of tile {} of {}", of_tile ? "" : "frozen ", t, layer.name), layer.weights_buffer,
                                layer.weights_offset(chunk.begin, width), round_up(chunk.num_elements() * width, 4096));
      if (of_tile) plan.tiles[tile].weights_extent = chunk.extent;
    }
    plan.weights_chunks.push_back(chunk);
  }
}

// Trained weights are cut as the tiles are, so that each tile's weights are a chunk of their own; of a layer kept whole
// everything is filled, other ranks' parts too.
void add_weights_chunks(Plan& plan, std::size_t l) {
  const LayerPlan layer = plan.layers[l];
  if (layer.resident) add_chunks(plan, l, {0, layer.owned.begin});
  add_chunks(plan, l, layer.owned);
  if (layer.resident) add_chunks(plan, l, {layer.owned.end, layer.num_trainable});
  add_chunks(plan, l, layer.frozen);
}

// A layer's gradient on NVMe: finished, or the sum of the micro-batches so far. Whole tiles are whole pages.
void add_gradient_home(Plan& plan, std::size_t l) {
  LayerPlan& layer = plan.layers[l];
  if (layer.num_trainable == 0 || layer.gradient_tier != Tier::nvme) return;
  const std::int64_t width = size_of(layer.gradient_dtype);
  layer.gradient_buffer = add_persistent(plan, fmt::format("gradient of {}", layer.name), Tier::nvme, Owner::gradients,
                                         round_up(layer.owned.size() * width, 4096));
  for (int t = 0; t < layer.num_tiles; ++t) {
    const TilePlan& tile = plan.tiles[static_cast<std::size_t>(layer.first_tile + t)];
    add_extent(plan, fmt::format("gradient of tile {} of {}", t, layer.name), layer.gradient_buffer, (tile.begin - layer.owned.begin) * width,
               padded_bytes(tile, layer.gradient_dtype));
  }
}

void add_activation_home(Plan& plan, std::size_t l) {
  LayerPlan& layer = plan.layers[l];
  if (layer.activation_tier != Tier::nvme) return;
  const std::int64_t bytes = round_up(activation_bytes(plan.request), 4096);
  layer.activation_buffer = add_persistent(plan, fmt::format("saved output of {}", layer.name), Tier::nvme, Owner::activations, bytes);
  add_extent(plan, fmt::format("output of {}", layer.name), layer.activation_buffer, 0, bytes);
}

// Square sums of layers finalised by the device follow the losses; those of the cpu lane have a buffer
// of their own.
void add_statistics(Plan& plan) {
  std::int64_t device_count = plan.request.accumulation_steps;
  std::int64_t host_count = 0;
  for (LayerPlan& layer : plan.layers) {
    std::int64_t& count = layer.square_sums_on_host ? host_count : device_count;
    layer.first_piece = count;
    count += norm_pieces(layer.slice.size());
  }
  plan.statistics_buffer = add_persistent(plan, "losses and square sums", Tier::host, Owner::statistics, device_count * 8);
  plan.verdict_buffer = add_persistent(plan, "verdict of the gate", Tier::host, Owner::statistics, 64);
  plan.gradient_piece_buffer = add_persistent(plan, "a piece of a gradient at the gate", Tier::host, Owner::statistics, kNormPiece * 4);
  if (host_count > 0) {
    plan.host_square_sums_buffer =
        add_persistent(plan, "square sums of host gradients", Tier::host, Owner::statistics, host_count * 8);
  }
  if (plan.request.world_size > 1) {
    plan.world_statistics_buffer = add_persistent(plan, "statistics of all ranks", Tier::host, Owner::statistics,
                                                  plan.request.world_size * static_cast<std::int64_t>(sizeof(WorldStatistics)));
  }
}

void add_maintenance(Plan& plan) {
  std::int64_t state = 0, moments = 0, weights = 0;
  const std::int64_t decoded = plan.request.state.moments == MomentFormat::f32 ? 0 : plan.request.state.num_moments();
  for (const TilePlan& tile : plan.tiles) {
    state = std::max(state, tile.state_bytes());
    moments = std::max(moments, decoded * round_up(tile.num_elements() * 4, 4096));
  }
  for (const WeightsChunk& chunk : plan.weights_chunks) {
    // Values as f32, then rounded.
    weights = std::max(weights, round_up(chunk.num_elements() * size_of(plan.request.dtype), 4096));
    state = std::max(state, round_up(chunk.num_elements() * 4, 4096));
  }
  plan.maintenance_moments_bytes = moments;
  plan.maintenance_weights_bytes = weights;
  plan.maintenance_buffer =
      add_transient(plan, "one tile, between steps", Tier::host, Owner::staging, state + moments + weights);
}

}  // namespace

std::int64_t padded_bytes(const TilePlan& tile, DType dtype) {
  return round_up(tile.num_elements() * size_of(dtype), 4096);
}

void lower_persistent(const Placement& placement, const std::vector<TileRange>& tiles, Plan& plan) {
  plan.partition_size = partition_of(plan.request).partition;
  for (std::size_t l = 0; l < plan.request.layers.size(); ++l) add_layer(placement, l, plan);
  for (std::size_t t = 0; t < tiles.size(); ++t) add_tile(placement, tiles[t], t, plan);
  for (std::size_t l = 0; l < plan.layers.size(); ++l) add_weights_chunks(plan, l);
  for (std::size_t l = 0; l < plan.layers.size(); ++l) add_gradient_home(plan, l);
  for (std::size_t l = 0; l < plan.layers.size(); ++l) add_activation_home(plan, l);
  const std::int64_t tokens = plan.request.shape.batch * plan.request.shape.time;
  plan.batch_buffer = add_persistent(plan, "tokens and targets", Tier::host, Owner::batch,
                                     plan.request.accumulation_steps * 2 * tokens * 4);
  add_statistics(plan);
  add_maintenance(plan);
}

}  // namespace spillway
