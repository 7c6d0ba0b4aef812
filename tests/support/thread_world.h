// Worlds whose ranks are threads of one process: the Communicator contract without processes, for tests of what is
// built on it. Deaths and silence do not exist here; failures spread, and waits are bounded.
#pragma once

#include <memory>
#include <vector>

#include "spillway/communicator.h"

namespace spillway::testing {

// Ranks 0 .. n-1. Each is for one thread, together with the communicators it makes and the streams these use. A rank
// may be destroyed while others go on.
std::vector<std::unique_ptr<World>> make_thread_worlds(int n, const WorldOptions& options = {});

}  // namespace spillway::testing
