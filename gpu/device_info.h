// The CUDA devices of the machine, as `spillway doctor` shows them.
#pragma once

#include <string>
#include <vector>

#include "spillway/device.h"

namespace spillway::cuda {

// Empty if there is a device that can be opened; else the reason, as a sentence.
std::string why_no_device();

int device_count();

// Every device, its link measured; what keeps one from being used is in its entry.
std::vector<CudaDeviceInfo> devices();

}  // namespace spillway::cuda
