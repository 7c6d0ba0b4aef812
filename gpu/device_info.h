// The CUDA devices of the machine, as `spillway doctor` shows them.
#pragma once

#include <string>
#include <vector>

#include "spillway/device.h"

namespace spillway::cuda {

// Empty if there is a device that can be opened; else the reason, as a sentence.
std::string why_no_device();

int device_count();

// "0000:17:00.0". Throws DeviceError.
std::string pci_address(int index);

// Every device, its link measured; what keeps one from being used is in its entry.
std::vector<CudaDeviceInfo> devices();

}  // namespace spillway::cuda
