// The one way to start a kernel: checks the shape against the kernel's limits and says which launch failed.
// The same text serves the simulation, which supplies cudaLaunchKernelEx.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <utility>

#include "spillway/error.h"

namespace spillway::gpu {

struct LaunchShape {
  dim3 grid;
  dim3 block;                    // a multiple of 32 threads
  std::size_t shared_bytes = 0;  // of SPILLWAY_SHARED_DYNAMIC
};

// Dynamic shared memory that every kernel may use without asking.
inline constexpr std::size_t kDefaultSharedBytes = 48 * 1024;

namespace detail {

inline std::string shape_text(const LaunchShape& shape) {
  const auto text = [](const dim3& d) { return std::to_string(d.x) + "x" + std::to_string(d.y) + "x" + std::to_string(d.z); };
  return text(shape.grid) + " blocks of " + text(shape.block) + " threads, " + std::to_string(shape.shared_bytes) +
         " bytes of dynamic shared memory";
}

inline void check_launch(cudaError_t error, const char* name, const char* step, const LaunchShape& shape) {
  if (error == cudaSuccess) return;
  throw DeviceError("[cuda] launch " + std::string(name) + ": " + step + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) +
                    "); " + shape_text(shape));
}

}  // namespace detail

// Enqueues kernel(args...), each argument converted to its parameter's type. Asynchronous. Throws DeviceError "[cuda] launch <name>: ...".
template <class... Params, class... Args>
void launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "a kernel takes as many arguments as it has parameters");
  if (shape.shared_bytes > kDefaultSharedBytes) {
    // The limit is the kernel's on the current device and stays raised; so it is asked for, not remembered here.
    cudaFuncAttributes attributes{};
    detail::check_launch(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)), name, "ask for its limits: ", shape);
    if (static_cast<std::size_t>(attributes.maxDynamicSharedSizeBytes) < shape.shared_bytes) {
      detail::check_launch(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(shape.shared_bytes)),
                           name, "raise its limit of shared memory: ", shape);
    }
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  detail::check_launch(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name, "", shape);
}

}  // namespace spillway::gpu
