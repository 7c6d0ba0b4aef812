// Pass "place": the tier of every persistent object.
#pragma once

#include <vector>

#include "spillway/plan.h"
#include "zero/partition.h"

namespace spillway {

Tier tier_of(OffloadDevice device);

struct TileRange {
  int layer;
  ElementRange elements;  // of the layer's flat buffer
};

struct Placement {
  std::vector<Tier> weights;          // per layer
  std::vector<bool> update_on_device;  // per layer: its optimizer state and finished gradient stay on the device
  std::vector<Tier> tiles;            // per tile; device exactly where the layer's update is
  std::vector<bool> gradients_on_nvme;  // per layer: its gradient, if it is not updated on the device
  bool accumulate_on_host = false;    // home of f32 accumulators when there are several micro-batches
};

// The tiles of all layers in forward order.
std::vector<TileRange> cut_tiles(const PlanRequest& request);

// As `device` and `ratio` say; under PlacementPolicy::fill everything starts on the device.
Placement initial_placement(const PlanRequest& request, const std::vector<TileRange>& tiles);

// Moves state worth at least `excess_bytes` one tier down from `tier`, no lower than the request allows.
// Returns false if nothing more may sink.
bool sink(const PlanRequest& request, const std::vector<TileRange>& tiles, Tier tier,
          std::int64_t excess_bytes, Placement& placement);

}  // namespace spillway
