// One warp's products by mma_tile, with operands that come into their lanes in each way there is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sample {

enum class Operands {
  by_lane,     // each lane takes its elements as intrinsics/mma.h says they lie
  by_rows,     // load_matrices from shared memory, b by its columns
  transposed,  // the same, b by its rows and load_matrices_transposed
};

// c (16, 16) += a (16, 16) * b (16, 16), row-major; a and b: 16-bit elements, of bf16 or fp16. All multiples of 16 bytes.
void multiply(float* c, const std::uint16_t* a, const std::uint16_t* b, bool bf16, Operands operands, cudaStream_t stream);

// to[i] = from[i] for every 16 bytes whose index is even, and zeros; through shared memory, 32 of them in two groups.
void copy_every_other(std::uint32_t* to, const std::uint32_t* from, cudaStream_t stream);

}  // namespace sample
