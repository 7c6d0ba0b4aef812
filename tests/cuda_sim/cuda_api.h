// The real CUDA runtime header, declared with default visibility: what the simulation defines of it is exported,
// everything else stays inside the library.
#pragma once

#pragma GCC visibility push(default)
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

#define CUDA_SIM_EXPORT __attribute__((visibility("default")))
