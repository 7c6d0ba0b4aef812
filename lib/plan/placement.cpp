#include "plan/placement.h"

#include <cmath>

#include "plan/ranks.h"

namespace spillway {

Tier tier_of(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::none: return Tier::device;
    case OffloadDevice::cpu: return Tier::host;
    case OffloadDevice::nvme: return Tier::nvme;
  }
  return Tier::device;
}

namespace {

Tier one_higher(Tier tier) { return tier == Tier::nvme ? Tier::host : Tier::device; }

// Elements that stay one tier above the named one.
std::int64_t kept_elements(std::int64_t total, double ratio) {
  return static_cast<std::int64_t>(std::llround(static_cast<double>(total) * (1.0 - ratio)));
}

std::int64_t trainable(const LayerShape& layer) { return layer.num_elements - layer.num_frozen; }

bool persistent_on_device(const PlanRequest& request, const LayerShape& layer) {
  return layer.num_elements <= request.persistence_threshold;
}

}  // namespace

std::vector<TileRange> cut_tiles(const PlanRequest& request) {
  std::vector<TileRange> tiles;
  for (std::size_t l = 0; l < request.layers.size(); ++l) {
    const ElementRange owned = partition_of(request).shard(trainable(request.layers[l]), request.rank);
    for (std::int64_t t = 0; t < num_tiles(owned.size(), request.tile_size); ++t) {
      const ElementRange range = tile_range(owned.size(), request.tile_size, t);
      tiles.push_back({static_cast<int>(l), {owned.begin + range.begin, owned.begin + range.end}});
    }
  }
  return tiles;
}

namespace {

void place_weights(const PlanRequest& request, Placement& placement) {
  const Tier tier = tier_of(request.offload_param);
  std::int64_t total = 0;
  for (const LayerShape& layer : request.layers) total += layer.num_elements;
  std::int64_t keep = kept_elements(total, request.offload_param_ratio);
  for (std::size_t l = 0; l < request.layers.size(); ++l) {
    const LayerShape& layer = request.layers[l];
    if (tier == Tier::device || persistent_on_device(request, layer)) continue;
    placement.weights[l] = keep >= layer.num_elements ? one_higher(tier) : tier;
    keep -= layer.num_elements;
  }
}

// Where a layer is updated is decided by its whole size, so that all ranks decide alike; where a tile lives is the
// rank's own affair.
void place_state(const PlanRequest& request, const std::vector<TileRange>& tiles, Placement& placement) {
  const Tier tier = tier_of(request.offload_optimizer);
  if (tier == Tier::device) return;
  std::int64_t total = 0, owned = 0;
  for (const LayerShape& layer : request.layers) total += trainable(layer);
  for (const TileRange& tile : tiles) owned += tile.elements.size();
  std::int64_t keep = kept_elements(total, request.offload_optimizer_ratio);
  for (std::size_t l = 0; l < request.layers.size(); ++l) {
    if (tier == Tier::nvme || keep < trainable(request.layers[l])) placement.update_on_device[l] = false;
    if (tier == Tier::host) keep -= trainable(request.layers[l]);
  }
  std::int64_t keep_owned = kept_elements(owned, request.offload_optimizer_ratio);
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    if (placement.update_on_device[static_cast<std::size_t>(tiles[t].layer)]) continue;
    placement.tiles[t] = tier;
    if (tier == Tier::nvme && keep_owned >= tiles[t].elements.size()) placement.tiles[t] = Tier::host;
    if (tier == Tier::nvme) keep_owned -= tiles[t].elements.size();
  }
}

}  // namespace

Placement initial_placement(const PlanRequest& request, const std::vector<TileRange>& tiles) {
  Placement placement;
  placement.weights.assign(request.layers.size(), Tier::device);
  placement.update_on_device.assign(request.layers.size(), true);
  placement.gradients_on_nvme.assign(request.layers.size(), request.placement == PlacementPolicy::exact && request.offload_gradients == OffloadDevice::nvme);
  placement.tiles.assign(tiles.size(), Tier::device);
  if (request.placement == PlacementPolicy::exact) {
    place_weights(request, placement);
    place_state(request, tiles, placement);
  }
  return placement;
}

namespace {

// Last layers first: the first layers' state is wanted soonest in the next step.
bool sink_from_device(const PlanRequest& request, const std::vector<TileRange>& tiles, std::int64_t excess,
                      Placement& placement) {
  const std::int64_t before = excess;
  // Only this rank's own slice can wait on the host, and only if no other rank wants it back on its device.
  const bool own_slices = request.world_size == 1 || (reduces_every_micro_batch(request) && partition_of(request).replicas() == 1);
  if (request.accumulation_steps > 1 && own_slices && !placement.accumulate_on_host) {
    bool any = false;
    for (const bool on_device : placement.update_on_device) any = any || on_device;
    if (!any) {
      placement.accumulate_on_host = true;
      return true;
    }
  }
  if (request.placement != PlacementPolicy::fill) return false;
  if (request.offload_optimizer != OffloadDevice::none) {
    for (std::size_t t = tiles.size(); t-- > 0 && excess > 0;) {
      const auto l = static_cast<std::size_t>(tiles[t].layer);
      if (!placement.update_on_device[l]) continue;
      placement.update_on_device[l] = false;
      for (std::size_t u = 0; u < tiles.size(); ++u) {
        if (tiles[u].layer == static_cast<int>(l)) placement.tiles[u] = Tier::host;
      }
      const std::int64_t owned = trainable(request.layers[l]) / partition_of(request).partition;
      excess -= state_layout(request.state, owned).bytes + owned * size_of(request.wire);
    }
  }
  if (request.offload_param != OffloadDevice::none) {
    for (std::size_t l = request.layers.size(); l-- > 0 && excess > 0;) {
      if (placement.weights[l] != Tier::device || persistent_on_device(request, request.layers[l])) continue;
      placement.weights[l] = Tier::host;
      excess -= request.layers[l].num_elements / partition_of(request).partition * size_of(request.dtype);
    }
  }
  return excess < before;
}

bool sink_from_host(const PlanRequest& request, const std::vector<TileRange>& tiles, std::int64_t excess,
                    Placement& placement) {
  if (request.placement != PlacementPolicy::fill) return false;
  const std::int64_t before = excess;
  if (request.offload_optimizer == OffloadDevice::nvme) {
    for (std::size_t t = tiles.size(); t-- > 0 && excess > 0;) {
      if (placement.tiles[t] != Tier::host) continue;
      placement.tiles[t] = Tier::nvme;
      excess -= state_layout(request.state, tiles[t].elements.size()).bytes;
    }
  }
  if (request.offload_param == OffloadDevice::nvme) {
    for (std::size_t l = request.layers.size(); l-- > 0 && excess > 0;) {
      if (placement.weights[l] != Tier::host) continue;
      placement.weights[l] = Tier::nvme;
      excess -= request.layers[l].num_elements / partition_of(request).partition * size_of(request.dtype);
    }
  }
  // Last: a gradient is there but from backward to update, and in f32 it goes down and up for every micro-batch.
  if (request.offload_gradients == OffloadDevice::nvme) {
    const std::int64_t width = placement.accumulate_on_host ? 4 : size_of(request.wire);
    for (std::size_t l = request.layers.size(); l-- > 0 && excess > 0;) {
      if (placement.gradients_on_nvme[l] || placement.update_on_device[l]) continue;
      placement.gradients_on_nvme[l] = true;
      excess -= trainable(request.layers[l]) / partition_of(request).partition * width;
    }
  }
  return excess < before;
}

}  // namespace

bool sink(const PlanRequest& request, const std::vector<TileRange>& tiles, Tier tier,
          std::int64_t excess_bytes, Placement& placement) {
  switch (tier) {
    case Tier::device: return sink_from_device(request, tiles, excess_bytes, placement);
    case Tier::host: return sink_from_host(request, tiles, excess_bytes, placement);
    case Tier::nvme: return false;
  }
  return false;
}

}  // namespace spillway
