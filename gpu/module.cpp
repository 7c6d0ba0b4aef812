// The table of the shared module: everything that leaves it.
#include "gpu/module.h"

#include "base/log.h"
#include "gpu/device.h"
#include "gpu/device_info.h"
#include "gpu/nccl_world.h"

extern "C" __attribute__((visibility("default"))) const spillway::cuda::Module* spillway_cuda_module() {
  static constexpr spillway::cuda::Module module = {
      .version = spillway::cuda::kModuleVersion,
      .log_through = spillway::log_through,
      .why_no_device = spillway::cuda::why_no_device,
      .device_count = spillway::cuda::device_count,
      .devices = spillway::cuda::devices,
      .make_device = spillway::cuda::make_device,
      .make_world = spillway::cuda::make_nccl_world,
  };
  return &module;
}
