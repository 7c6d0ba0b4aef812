// The machine's rates, measured in about a second before planning.
#pragma once

#include <span>
#include <string>

#include "spillway/cost.h"
#include "spillway/device.h"
#include "spillway/disk_probe.h"
#include "spillway/model.h"
#include "spillway/optimizer.h"

namespace spillway {

// Rates of a device and of the host: a linear layer of the model's width, element-wise passes, copies, the
// optimizer, and the disks under `nvme_folders`, if there are any, all at the same time: their rates add up, and the latency
// is the longest. The operands are arenas of the device, which live as long as that: give it one that will not be trained on.
// Throws DeviceError, MemoryError, and IoError if a folder cannot be used.
MachineRates measure_rates(Device& device, const ModelSpec& spec, const BatchShape& shape, DType dtype, const StateFormat& state,
                           std::span<const std::string> nvme_folders, const DiskProbeOptions& probe);

// Bytes per second of the fused optimizer update in memory, state, 16-bit gradient and weight counted, on all threads of
// the process.
double measure_optimizer(const StateFormat& format);

}  // namespace spillway
