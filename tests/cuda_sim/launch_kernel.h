// cudaLaunchKernelEx for kernels that are host functions: keeps the types of the arguments that the C entry point loses.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "cuda_sim/cuda_api.h"

namespace cuda_sim {

struct KernelCall {
  const void* kernel;                    // the function's address: what attributes are set for
  void (*thread)(const void* arguments);  // runs one CUDA thread
  const void* arguments;                 // copied
  std::size_t argument_bytes;
};

CUDA_SIM_EXPORT cudaError_t launch_kernel(const cudaLaunchConfig_t& config, const KernelCall& call);

template <class... Params, class... Args>
cudaError_t launch_ex(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  const auto call = [kernel](auto... coerced) {
    const auto thread = [kernel, coerced...] { kernel(coerced...); };
    static_assert(std::is_trivially_copyable_v<decltype(thread)>, "arguments of a kernel are copied as bytes");
    return thread;
  };
  const auto thread = [&](Params... coerced) { return call(coerced...); }(std::forward<Args>(args)...);
  using Thread = std::remove_const_t<decltype(thread)>;
  return launch_kernel(*config, {reinterpret_cast<const void*>(kernel),
                                 [](const void* arguments) { (*static_cast<const Thread*>(arguments))(); }, &thread, sizeof(thread)});
}

}  // namespace cuda_sim
