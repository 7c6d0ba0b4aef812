// How the kernels are known: what nvcc compiles registers each of them with the runtime when the module is opened, by
// __cudaRegisterFunction of crt/host_runtime.h. The module is linked with --wrap for that name, so that it comes by here.
// Were it ever another name, the list would be empty, and kernels loaded as they are launched.
#include "gpu/kernel_list.h"

#include <vector>

#include <cuda_runtime_api.h>

#include "gpu/check.h"

namespace {

std::vector<const void*>& kernels() {
  static std::vector<const void*> list;
  return list;
}

}  // namespace

extern "C" {

void __real___cudaRegisterFunction(void** binary, const char* host_function, char* device_function, const char* name, int thread_limit, uint3* thread,
                                   uint3* block, dim3* block_shape, dim3* grid_shape, int* warp_size);

void __wrap___cudaRegisterFunction(void** binary, const char* host_function, char* device_function, const char* name, int thread_limit, uint3* thread,
                                   uint3* block, dim3* block_shape, dim3* grid_shape, int* warp_size) {
  kernels().push_back(host_function);
  __real___cudaRegisterFunction(binary, host_function, device_function, name, thread_limit, thread, block, block_shape, grid_shape, warp_size);
}
}

namespace spillway::cuda {

void load_kernels() {
  for (const void* kernel : kernels()) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel), "load the kernels");
  }
}

}  // namespace spillway::cuda
