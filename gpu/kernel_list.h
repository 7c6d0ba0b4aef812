// The module's own kernels, all of them.
#pragma once

namespace spillway::cuda {

// Loads every kernel onto the current device. CUDA would otherwise do so when each is first launched, which takes memory of
// the device in the middle of a step; and a build that has no kernels for this device would show only then. Throws DeviceError.
void load_kernels();

}  // namespace spillway::cuda
