// Forced before every file of the simulated module: makes g++ read what nvcc reads. The real CUDA headers leave these
// names out for compilers that are not nvcc.
#pragma once

// The coordinates are variables of simt.h; as the real header declares them they would be constants.
#define __DEVICE_LAUNCH_PARAMETERS_H__
// An array in shared memory has to come from the macros of intrinsics/shared_memory.h.
#define __shared__ declare_shared_memory_with_SPILLWAY_SHARED_ARRAY
#include <cuda_runtime.h>
#undef __launch_bounds__
#define __launch_bounds__(...)

#include "cuda_sim/atomics.h"
#include "cuda_sim/device_functions.h"
#include "cuda_sim/launch_kernel.h"
#include "cuda_sim/simt.h"
#include "cuda_sim/warp_functions.h"

// The real one is a template, too, but hands on arguments without their types.
#define cudaLaunchKernelEx ::cuda_sim::launch_ex
