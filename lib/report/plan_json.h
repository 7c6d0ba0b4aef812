// A plan as JSON, for tools and for looking things up: what `spillway plan --json` prints.
#pragma once

#include <string>

#include "spillway/cost.h"
#include "spillway/plan.h"

namespace spillway {

// One object: world (ranks, tokens/s, bytes of collectives of this rank and its node), tiers (peak, budget, by owner), layers, tiles, buffers (tier, offset, bytes, owner), tasks (kind,
// lane, layer, micro-batch, tile, buffers touched, dependencies, predicted start and end), lanes, rates.
std::string plan_json(const Plan& plan, const Simulation& simulation, const MachineRates& rates);

}  // namespace spillway
