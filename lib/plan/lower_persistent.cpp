#include <fmt/format.h>

#include "plan/lower.h"
#include "spillway/ops.h"

namespace spillway {

namespace {

// On NVMe a layer's flat weights are stored tile after tile, each padded to whole pages. Only the last
// tile of a layer has padding, so that the flat buffer stays contiguous.
std::int64_t stored_weight_bytes(const Plan& plan, const LayerPlan& layer) {
  const std::int64_t bytes = layer.num_elements * size_of(plan.request.dtype);
  return layer.weights_tier == Tier::nvme ? round_up(bytes, 4096) : bytes;
}

void add_layer(const Placement& placement, std::size_t index, Plan& plan) {
  const LayerShape& shape = plan.request.layers[index];
  LayerPlan layer;
  layer.name = shape.name;
  layer.num_elements = shape.num_elements;
  layer.weights_tier = placement.weights[index];
  layer.update_on_device = placement.update_on_device[index];
  layer.square_sums_on_host = placement.accumulate_on_host && !layer.update_on_device;
  layer.gradient_dtype = layer.square_sums_on_host ? DType::f32 : plan.request.wire;
  layer.first_tile = static_cast<int>(plan.tiles.size());
  layer.num_tiles = 0;
  layer.first_piece = 0;
  layer.weights_buffer = add_persistent(plan, fmt::format("weights of {}", shape.name), layer.weights_tier,
                                        Owner::weights, stored_weight_bytes(plan, layer));
  plan.layers.push_back(layer);
}

int add_extent(Plan& plan, std::string name, int buffer, std::int64_t begin, std::int64_t bytes) {
  plan.extents.push_back({std::move(name), buffer, begin, bytes});
  return static_cast<int>(plan.extents.size()) - 1;
}

void add_tile(const Placement& placement, const TileRange& range, std::size_t index, Plan& plan) {
  LayerPlan& layer = plan.layers[static_cast<std::size_t>(range.layer)];
  const int number = layer.num_tiles++;
  if (number == 0) layer.first_tile = static_cast<int>(index);
  TilePlan tile{range.layer, range.elements.begin, range.elements.end, placement.tiles[index], -1, -1, -1};
  tile.state_buffer = add_persistent(plan, fmt::format("state of tile {} of {}", number, layer.name), tile.tier,
                                     Owner::optimizer_state, tile.state_bytes());
  if (tile.tier == Tier::nvme) {
    tile.state_extent = add_extent(plan, fmt::format("tile {} of {}", number, layer.name), tile.state_buffer, 0,
                                   tile.state_bytes());
  }
  if (layer.weights_tier == Tier::nvme) {
    tile.weights_extent = add_extent(plan, fmt::format("weights of tile {} of {}", number, layer.name),
                                     layer.weights_buffer, tile.begin * size_of(plan.request.dtype),
                                     padded_weight_bytes(tile, plan.request.dtype));
  }
  plan.tiles.push_back(tile);
}

// Square sums of layers finalised by the device follow the losses; those of the cpu lane have a buffer
// of their own.
void add_statistics(Plan& plan) {
  std::int64_t device_count = plan.request.accumulation_steps;
  std::int64_t host_count = 0;
  for (LayerPlan& layer : plan.layers) {
    std::int64_t& count = layer.square_sums_on_host ? host_count : device_count;
    layer.first_piece = count;
    count += norm_pieces(layer.num_elements);
  }
  plan.statistics_buffer = add_persistent(plan, "losses and square sums", Tier::host, Owner::statistics, device_count * 8);
  plan.verdict_buffer = add_persistent(plan, "verdict of the gate", Tier::host, Owner::statistics, 64);
  if (host_count > 0) {
    plan.host_square_sums_buffer =
        add_persistent(plan, "square sums of host gradients", Tier::host, Owner::statistics, host_count * 8);
  }
}

void add_maintenance(Plan& plan) {
  std::int64_t state = 0, weights = 0;
  for (const TilePlan& tile : plan.tiles) {
    state = std::max(state, tile.state_bytes());
    weights = std::max(weights, padded_weight_bytes(tile, plan.request.dtype));
  }
  plan.maintenance_buffer =
      add_transient(plan, "one tile, between steps", Tier::host, Owner::staging, state + weights);
}

}  // namespace

std::int64_t padded_weight_bytes(const TilePlan& tile, DType dtype) {
  return round_up(tile.num_elements() * size_of(dtype), 4096);
}

void lower_persistent(const Placement& placement, const std::vector<TileRange>& tiles, Plan& plan) {
  for (std::size_t l = 0; l < plan.request.layers.size(); ++l) add_layer(placement, l, plan);
  for (std::size_t t = 0; t < tiles.size(); ++t) add_tile(placement, tiles[t], t, plan);
  const std::int64_t tokens = plan.request.shape.batch * plan.request.shape.time;
  plan.batch_buffer = add_persistent(plan, "tokens and targets", Tier::host, Owner::batch,
                                     plan.request.accumulation_steps * 2 * tokens * 4);
  add_statistics(plan);
  add_maintenance(plan);
}

}  // namespace spillway
