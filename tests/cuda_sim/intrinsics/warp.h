// The simulation's half of gpu/intrinsics/warp.h: same results bit for bit, but a reduction is one exchange instead of
// five, since an exchange switches fibers 32 times.
#pragma once

#include <cmath>

#include "cuda_sim/warp_functions.h"
#include "intrinsics/shared_memory.h"

namespace spillway::gpu {

inline constexpr unsigned kFullMask = 0xffffffffu;
inline constexpr int kWarpSize = 32;

inline int thread_in_block() { return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)); }
inline int threads_in_block() { return static_cast<int>(blockDim.x * blockDim.y * blockDim.z); }
inline int lane_index() { return static_cast<int>(cuda_sim::lane()); }
inline int warp_index() { return thread_in_block() / kWarpSize; }

using cuda_sim::Site;

template <class T>
T shuffle_down(T value, unsigned delta, Site site = cuda_sim::here()) {
  const unsigned lane = cuda_sim::lane();
  return cuda_sim::exchange(kFullMask, value, lane + delta < 32 ? lane + delta : lane, "shuffle_down", site);
}

template <class T>
T shuffle_xor(T value, int lane_mask, Site site = cuda_sim::here()) {
  return cuda_sim::exchange(kFullMask, value, (cuda_sim::lane() ^ static_cast<unsigned>(lane_mask)) & 31u, "shuffle_xor", site);
}

template <class T>
T broadcast(T value, int lane, Site site = cuda_sim::here()) {
  return cuda_sim::exchange(kFullMask, value, static_cast<unsigned>(lane) & 31u, "broadcast", site);
}

inline bool warp_any(bool condition, Site site = cuda_sim::here()) {
  return __any_sync(kFullMask, condition, site.file, site.line) != 0;
}

namespace detail {

// What each lane of the butterfly ends with. Combining is commutative, so all lanes end with the same bits and the
// lower half is enough to follow.
template <class T, class Combine>
T butterfly(T value, Combine combine, const char* operation, Site site) {
  const cuda_sim::WarpValues values = cuda_sim::warp_exchange(kFullMask, &value, sizeof(T), operation, site);
  T partial[kWarpSize];
  for (unsigned lane = 0; lane < kWarpSize; ++lane) partial[lane] = values.of<T>(lane);
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    for (int lane = 0; lane < distance; ++lane) partial[lane] = combine(partial[lane], partial[lane + distance]);
  }
  return partial[0];
}

template <class T, class Combine>
T combine_warps(T of_warp, Combine combine, Site site) {
  SPILLWAY_SHARED_ARRAY(T, of_warps, 32);
  if (lane_index() == 0) of_warps[warp_index()] = of_warp;
  cuda_sim::sync_threads(site);
  T result = of_warps[0];
  for (int warp = 1; warp < threads_in_block() / kWarpSize; ++warp) result = combine(result, of_warps[warp]);
  cuda_sim::sync_threads(site);
  return result;
}

}  // namespace detail

template <class T>
T warp_sum(T value, Site site = cuda_sim::here()) {
  return detail::butterfly(value, [](T a, T b) { return a + b; }, "warp_sum", site);
}

template <class T>
T warp_max(T value, Site site = cuda_sim::here()) {
  return detail::butterfly(value, [](T a, T b) { return std::fmax(a, b); }, "warp_max", site);
}

template <class T>
T block_sum(T value, Site site = cuda_sim::here()) {
  return detail::combine_warps(warp_sum(value, site), [](T a, T b) { return a + b; }, site);
}

template <class T>
T block_max(T value, Site site = cuda_sim::here()) {
  return detail::combine_warps(warp_max(value, site), [](T a, T b) { return std::fmax(a, b); }, site);
}

}  // namespace spillway::gpu
