// What a kernel compiled for the simulation calls: the thread's coordinates, barriers, exchange within a warp, shared
// memory. Included by shim.h into instrumented code; implemented in the library.
#pragma once

#include <cstddef>
#include <vector_types.h>

#define CUDA_SIM_API __attribute__((visibility("default")))
// Of initial-exec, since looking a variable up by a call would cost most of a simple kernel's time.
#define CUDA_SIM_COORDINATE CUDA_SIM_API extern thread_local __attribute__((tls_model("initial-exec")))

CUDA_SIM_COORDINATE constinit uint3 threadIdx;
CUDA_SIM_COORDINATE constinit uint3 blockIdx;
CUDA_SIM_COORDINATE constinit dim3 blockDim;
CUDA_SIM_COORDINATE constinit dim3 gridDim;

namespace cuda_sim {

// Where the kernel's text calls from.
struct Site {
  const char* file;
  int line;
};

inline Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

inline constexpr std::size_t kWarpValueBytes = 128;

// What the lanes of a mask handed in: lane l's value starts at values + l * kWarpValueBytes. Stays until the calling
// thread's next exchange. Bytes of lanes outside the mask are all ones.
struct WarpValues {
  const unsigned char* values;

  template <class T>
  const T& of(unsigned lane) const {
    return *reinterpret_cast<const T*>(values + lane * kWarpValueBytes);
  }
};

// Blocks until every thread of the block has called it from the same site.
CUDA_SIM_API void sync_threads(Site site);

// Blocks until every lane of `mask` has called it with the same mask, operation and size. `bytes` <= kWarpValueBytes.
// `orders_memory` as __syncwarp does; shuffles do not.
CUDA_SIM_API WarpValues warp_exchange(unsigned mask, const void* value, std::size_t bytes, const char* operation, Site site,
                                      bool orders_memory = false);

// The calling thread's index in its warp.
CUDA_SIM_API unsigned lane();

// The block's array that `identity` (an address that only this declaration has) names; all ones at the block's start.
CUDA_SIM_API void* shared_array(const void* identity, std::size_t bytes, std::size_t alignment, Site site);
// The launch's dynamic shared memory, likewise.
CUDA_SIM_API void* shared_dynamic();
// Its size, for bounds in the simulation's own halves of intrinsics.
CUDA_SIM_API std::size_t shared_dynamic_bytes();

template <class T>
T exchange(unsigned mask, const T& value, unsigned source, const char* operation, Site site) {
  static_assert(sizeof(T) <= 8, "a shuffle carries at most 8 bytes");
  return warp_exchange(mask, &value, sizeof(T), operation, site).template of<T>(source);
}

}  // namespace cuda_sim
