// Errors of the CUDA runtime as DeviceErrors that say what was attempted and what to do.
#pragma once

#include <string>
#include <string_view>

#include <cuda_runtime_api.h>

namespace spillway::cuda {

// "an illegal memory access was encountered (cudaErrorIllegalAddress)", and "; " and what to do about it where that is known.
std::string error_text(cudaError_t error);

// Whether the error says that there is no device to use: driver absent or too old (35), a stub in its place (34), no
// device visible (100).
bool means_no_device(cudaError_t error);

// Throws DeviceError "[cuda] <attempted>: <error text>" unless the call succeeded. `attempted`: "open device 0".
void check(cudaError_t error, std::string_view attempted);

}  // namespace spillway::cuda
