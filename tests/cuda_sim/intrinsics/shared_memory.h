// The simulation's half of gpu/intrinsics/shared_memory.h: memory of exactly the size asked for, all ones (NaN) at the
// start of each block, with bounds that the simulation checks.
#pragma once

#include "cuda_sim/simt.h"

#define SPILLWAY_SHARED_ARRAY(T, name, N)                                        \
  static char name##_identity;                                                   \
  T(&name)[N] = *static_cast<T(*)[N]>(::cuda_sim::shared_array(&name##_identity, sizeof(T) * (N), alignof(T), ::cuda_sim::here()))

#define SPILLWAY_SHARED_DYNAMIC(T, name) T* const name = static_cast<T*>(::cuda_sim::shared_dynamic())
