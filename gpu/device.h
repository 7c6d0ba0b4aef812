// The CUDA device behind the Device contract.
#pragma once

#include <memory>

#include "gpu/context.h"
#include "spillway/device.h"

namespace spillway::cuda {

std::unique_ptr<Device> make_device(int index);

// Of a device that make_device() has made; dies with it.
Context& context_of(Device& device);

}  // namespace spillway::cuda
