// Pass "lower": model, configuration and placement become tasks in canonical order, with the buffers
// they touch. Dependencies are derived later, from the addresses.
#pragma once

#include <vector>

#include "plan/builder.h"
#include "plan/placement.h"
#include "spillway/plan.h"

namespace spillway {

// Fills layers, tiles, extents and the persistent buffers of `plan` from its request.
void lower_persistent(const Placement& placement, const std::vector<TileRange>& tiles, Plan& plan);

// Forward, backward and gradients of all micro-batches, then the gate.
Timeline lower_compute(Plan& plan);

// The optimizer, tile by tile. The first tiles are read under the last backward tasks of `timeline`.
void lower_update(Plan& plan, Timeline& timeline);

// The order in which tiles are updated, and so the order of all that follows the update.
std::vector<int> update_order(const Plan& plan);

// At the head of the step: what this rank saves, should a checkpoint be asked for.
void lower_snapshots(Plan& plan, Timeline& timeline);

// Forward of one batch and its loss.
Timeline lower_evaluation(Plan& plan);

// Makes a layer's weights available on the device from position `first` of the timeline on, moving them
// there ahead of use if they live elsewhere. Returns the buffer to read.
int lower_weights(Plan& plan, Timeline& timeline, int layer, std::int64_t first);

// A plan as far as its memory goes: placed, lowered and allocated. build_plan() adds dependencies and hashes.
Plan sized_plan(const PlanRequest& request);

}  // namespace spillway
