// Shared memory of a block. Kernels declare it through these two macros only, so that the simulation can bound it,
// fill it with NaN and tell its races.
#pragma once

#ifndef __CUDACC__
#error "this is nvcc's half of intrinsics/shared_memory.h; the simulation's folder has to come first in the include path"
#endif

// T (&name)[N], one array for the block, unset at its start. At block scope.
#define SPILLWAY_SHARED_ARRAY(T, name, N) __shared__ T name[N]

// T* name: the launch's shared_bytes, aligned to 128 bytes, unset at the block's start. At block scope.
#define SPILLWAY_SHARED_DYNAMIC(T, name)                            \
  extern __shared__ __align__(128) unsigned char spillway_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(spillway_dynamic_shared)
