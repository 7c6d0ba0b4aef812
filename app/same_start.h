// Ranks may be started one by one with arguments of their own. If these differ in what decides how many steps, saves or
// evaluations there are, the ranks wait for each other in different places, for ever, each seen to be alive.
#pragma once

#include "app/job.h"
#include "app/options.h"
#include "spillway/config.h"

namespace spillway::app {

// Collective. Throws ConfigError, on all ranks, naming the first thing in which one differs from rank 0.
void require_same_start(Job& job, const TrainOptions& options, const Config& config);

}  // namespace spillway::app
