// What several ranks hold of the same state must be the same bits: a rank whose memory, disk or arithmetic went wrong is
// found here, and not by its loss.
#pragma once

#include "runtime/rank_links.h"
#include "runtime/state_access.h"
#include "spillway/plan.h"

namespace spillway {

// Compares the weights that every rank keeps whole, and the state of shards that have replicas. Throws CommError that
// names the layer and the ranks. Only between steps. Collective.
void compare_replicas(const Plan& plan, StateAccess& state, RankLinks& links);

}  // namespace spillway
