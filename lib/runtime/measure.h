// The machine's rates, measured in about a second before planning.
#pragma once

#include <string>

#include "spillway/cost.h"
#include "spillway/device.h"
#include "spillway/model.h"

namespace spillway {

// Rates of the host device: a linear layer of the model's width, element-wise passes, copies, the
// optimizer, and, if `nvme_folder` is not empty, the disk under it (a scratch file of 64 MiB that has no
// name). Throws IoError if the folder cannot be used.
MachineRates measure_host_rates(Device& device, const ModelSpec& spec, const BatchShape& shape, DType dtype,
                                const std::string& nvme_folder, const std::string& io_engine);

}  // namespace spillway
