// How much host memory a save may copy state to, where the configuration leaves that open.
#pragma once

#include <string>

#include "app/setup.h"
#include "spillway/plan.h"

namespace spillway::app {

// The plan, of setup.request, with so much memory for snapshots that a save beginning in a step is predicted to stop training for one step
// at most: this rank's state less what the disk under `out` takes in two steps, of which the first has to be taken anyway.
// No less than the plan has, and no more than fits; says how much, and why. The disk is measured, with a file that has no
// name. Changes setup.request with it. Not collective, but ranks that share a disk call it at the same time. Throws IoError if nothing can be written.
Plan with_snapshot_memory(Plan plan, Setup& setup, const std::string& out, int ranks_on_machine);

}  // namespace spillway::app
