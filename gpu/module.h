// What the CUDA module, a shared library of its own, gives to the program. The program opens it when a CUDA device is
// asked for and not before: a run on the host device carries none of CUDA's libraries.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "spillway/communicator.h"
#include "spillway/device.h"

namespace spillway::cuda {

// Grows with every change of this table: a module of another build is refused, not crashed into.
inline constexpr int kModuleVersion = 2;

struct Module {
  int version;
  // What the module has to say goes to the program's own log: it has a copy of ours, which knows nothing of ranks.
  void (*log_through)(void (*log)(LogLevel, std::string_view));
  // Empty if there is a device that can be opened; else the reason, as a sentence.
  std::string (*why_no_device)();
  int (*device_count)();
  // Every device of the machine, its link measured.
  std::vector<CudaDeviceInfo> (*devices)();
  std::unique_ptr<Device> (*make_device)(int index);
  // See make_device_world(). `device` is one of make_device().
  std::unique_ptr<World> (*make_world)(World& control, Device& device, const WorldOptions& options);
};

}  // namespace spillway::cuda

extern "C" const spillway::cuda::Module* spillway_cuda_module();
