// A CUDA module as another build would have it: only the version of its table means anything.
#include "gpu/module.h"

extern "C" const spillway::cuda::Module* spillway_cuda_module() {
  static constexpr spillway::cuda::Module module = {.version = 1'000'000,
                                                    .log_through = nullptr,
                                                    .why_no_device = nullptr,
                                                    .device_count = nullptr,
                                                    .devices = nullptr,
                                                    .make_device = nullptr,
                                                    .make_world = nullptr};
  return &module;
}
