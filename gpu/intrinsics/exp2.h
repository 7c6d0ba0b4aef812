// 2^x by the special function unit, in one instruction.
#pragma once

#ifndef __CUDACC__
#error "this is nvcc's half of intrinsics/exp2.h; the simulation's folder has to come first in the include path"
#endif

namespace spillway::gpu {

// 2^x with a relative error of about 2^-22; 0 where that is less than the smallest normal number, which exp2f would take
// several instructions more to tell apart.
__device__ inline float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace spillway::gpu
