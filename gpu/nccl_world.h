// Ranks whose buffers NCCL moves between devices.
#pragma once

#include <memory>

#include "spillway/communicator.h"

namespace spillway::cuda {

// See make_device_world(). `device` is one of make_device().
std::unique_ptr<World> make_nccl_world(World& control, Device& device, const WorldOptions& options);

}  // namespace spillway::cuda
