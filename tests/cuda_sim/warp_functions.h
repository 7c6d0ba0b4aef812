// Barriers and warp intrinsics by their CUDA names. The caller's file and line go along, so that threads that meet at
// different places are told apart.
#pragma once

#include "cuda_sim/simt.h"

inline constexpr int warpSize = 32;

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  cuda_sim::sync_threads({file, line});
}

inline void __syncwarp(unsigned mask = 0xffffffffu, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const char nothing = 0;
  cuda_sim::warp_exchange(mask, &nothing, 1, "__syncwarp", {file, line}, true);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const unsigned segment = cuda_sim::lane() & ~static_cast<unsigned>(width - 1);
  return cuda_sim::exchange(mask, value, segment + (static_cast<unsigned>(source) & static_cast<unsigned>(width - 1)), "__shfl_sync",
                            {file, line});
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  const unsigned lane = cuda_sim::lane(), in_segment = lane & static_cast<unsigned>(width - 1);
  return cuda_sim::exchange(mask, value, delta <= in_segment ? lane - delta : lane, "__shfl_up_sync", {file, line});
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  const unsigned lane = cuda_sim::lane(), in_segment = lane & static_cast<unsigned>(width - 1);
  return cuda_sim::exchange(mask, value, in_segment + delta < static_cast<unsigned>(width) ? lane + delta : lane, "__shfl_down_sync",
                            {file, line});
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  const unsigned lane = cuda_sim::lane(), source = lane ^ static_cast<unsigned>(lane_mask);
  // A lane of a later segment is out of reach.
  const bool within = (source & ~static_cast<unsigned>(width - 1)) <= (lane & ~static_cast<unsigned>(width - 1));
  return cuda_sim::exchange(mask, value, within ? source : lane, "__shfl_xor_sync", {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const unsigned char vote = predicate != 0;
  const cuda_sim::WarpValues votes = cuda_sim::warp_exchange(mask, &vote, 1, "__ballot_sync", {file, line});
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) != 0 && votes.of<unsigned char>(lane) != 0) result |= 1u << lane;
  }
  return result;
}

inline int __any_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}

inline int __all_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, file, line) == mask;
}
