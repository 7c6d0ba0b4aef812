// The operations of the CUDA device: products of matrices by cuBLASLt, everything else by gpu/kernels.
#pragma once

#include <memory>

#include "spillway/ops.h"

namespace spillway::cuda {

// For weights and activations of `dtype`, on the device that is current now. Streams passed to the operations are CudaStreams.
// Throws DeviceError if cuBLASLt cannot be used.
std::unique_ptr<Ops> make_ops(DType dtype);

}  // namespace spillway::cuda
