// Exchange between the threads of a warp and reductions over warps and blocks, always by all threads and always in
// the same order, so that results never depend on timing.
#pragma once

#ifndef __CUDACC__
#error "this is nvcc's half of intrinsics/warp.h; the simulation's folder has to come first in the include path"
#endif

#include <cuda_runtime.h>

#include "intrinsics/shared_memory.h"

namespace spillway::gpu {

inline constexpr unsigned kFullMask = 0xffffffffu;
inline constexpr int kWarpSize = 32;

// Index of the calling thread in its block, x fastest.
__device__ inline int thread_in_block() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}
__device__ inline int threads_in_block() { return static_cast<int>(blockDim.x * blockDim.y * blockDim.z); }
__device__ inline int lane_index() { return thread_in_block() % kWarpSize; }
__device__ inline int warp_index() { return thread_in_block() / kWarpSize; }

namespace detail {

// Any value of up to 8 bytes as bits that the hardware's shuffle takes.
template <class T>
struct ShuffleBits {
  static_assert(sizeof(T) <= 8, "a shuffle carries at most 8 bytes");
  union Storage {
    __device__ Storage() : bits(0) {}
    unsigned long long bits;
    T value;
  };
};

template <class T, class Shuffle>
__device__ inline T shuffle(T value, Shuffle move) {
  typename ShuffleBits<T>::Storage storage;
  storage.value = value;
  if constexpr (sizeof(T) <= 4) {
    storage.bits = move(static_cast<unsigned>(storage.bits));
  } else {
    storage.bits = move(storage.bits);
  }
  return storage.value;
}

}  // namespace detail

// The value of the lane `delta` above; the caller's own past the end of the warp.
template <class T>
__device__ inline T shuffle_down(T value, unsigned delta) {
  return detail::shuffle(value, [=](auto bits) { return __shfl_down_sync(kFullMask, bits, delta); });
}

// The value of the lane whose index differs by the bits of `lane_mask`.
template <class T>
__device__ inline T shuffle_xor(T value, int lane_mask) {
  return detail::shuffle(value, [=](auto bits) { return __shfl_xor_sync(kFullMask, bits, lane_mask); });
}

// The value of `lane`.
template <class T>
__device__ inline T broadcast(T value, int lane) {
  return detail::shuffle(value, [=](auto bits) { return __shfl_sync(kFullMask, bits, lane); });
}

// Whether `condition` holds in any lane.
__device__ inline bool warp_any(bool condition) { return __any_sync(kFullMask, condition) != 0; }

// Sum over the warp by a butterfly (lanes 16 apart first); every lane gets the same bits. T: float or double.
template <class T>
__device__ inline T warp_sum(T value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
  return value;
}

// Maximum over the warp in every lane; a NaN counts only if all values are. T: float or double.
template <class T>
__device__ inline T warp_max(T value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) value = fmax(value, shuffle_xor(value, distance));
  return value;
}

namespace detail {

template <class T, class Combine>
__device__ inline T combine_warps(T of_warp, Combine combine) {
  SPILLWAY_SHARED_ARRAY(T, of_warps, 32);
  if (lane_index() == 0) of_warps[warp_index()] = of_warp;
  __syncthreads();
  T result = of_warps[0];
  for (int warp = 1; warp < threads_in_block() / kWarpSize; ++warp) result = combine(result, of_warps[warp]);
  __syncthreads();  // the next use may write
  return result;
}

}  // namespace detail

// Sum over the block in every thread: warp_sum of each warp, then the warps in order. All threads of the block call it. T: float or double.
template <class T>
__device__ inline T block_sum(T value) {
  return detail::combine_warps(warp_sum(value), [](T a, T b) { return a + b; });
}

// Maximum over the block in every thread, as warp_max. All threads of the block call it. T: float or double.
template <class T>
__device__ inline T block_max(T value) {
  return detail::combine_warps(warp_max(value), [](T a, T b) { return fmax(a, b); });
}

}  // namespace spillway::gpu
