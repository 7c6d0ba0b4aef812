// Settings from environment variables.
#pragma once

#include "cuda_sim/cuda_sim.h"

namespace cuda_sim {

// A value that means nothing is a violation, so that a misspelt mode is not taken for a passed test.
Settings settings_of_environment();

}  // namespace cuda_sim
