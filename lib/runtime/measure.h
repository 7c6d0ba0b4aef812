// The machine's rates, measured in about a second before planning.
#pragma once

#include <string>

#include "spillway/cost.h"
#include "spillway/device.h"
#include "spillway/model.h"
#include "spillway/optimizer.h"

namespace spillway {

// Rates of a device and of the host: a linear layer of the model's width, element-wise passes, copies, the
// optimizer, and, if `nvme_folder` is not empty, the disk under it (a scratch file of 64 MiB that has no
// name). The operands are arenas of the device, which live as long as that: give it one that will not be trained on.
// Throws DeviceError, MemoryError, and IoError if the folder cannot be used.
MachineRates measure_rates(Device& device, const ModelSpec& spec, const BatchShape& shape, DType dtype, const StateFormat& state,
                           const std::string& nvme_folder, const std::string& io_engine);

// Bytes per second of the fused optimizer update in memory, state, 16-bit gradient and weight counted, on all threads of
// the process.
double measure_optimizer(const StateFormat& format);

// Bytes per second of the swap file's disk, with a scratch file of 64 MiB that has no name. Throws IoError.
struct DiskRates {
  double read_bytes = 0.0, write_bytes = 0.0;
  double mixed_bytes = 0.0;  // read and written together
};
DiskRates measure_disk(const std::string& folder, const std::string& io_engine);

}  // namespace spillway
