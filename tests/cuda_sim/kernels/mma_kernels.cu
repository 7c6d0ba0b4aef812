#include "cuda_sim/kernels/mma_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "intrinsics/copy_async.h"
#include "intrinsics/launch.h"
#include "intrinsics/mma.h"
#include "intrinsics/shared_memory.h"
#include "intrinsics/warp.h"

namespace sample {

using namespace spillway::gpu;

namespace {

constexpr int kSize = 16;

__device__ unsigned pair(std::uint16_t first, std::uint16_t second) { return first | static_cast<unsigned>(second) << 16; }

template <class T>
__global__ void multiply_kernel(float* c, const std::uint16_t* a, const std::uint16_t* b, Operands operands) {
  SPILLWAY_SHARED_ARRAY(uint4, shared, 2 * kSize * kSize * 2 / 16);
  std::uint16_t* const left = reinterpret_cast<std::uint16_t*>(shared);
  std::uint16_t* const right = left + kSize * kSize;
  const int lane = lane_index(), g = lane / 4, t = lane % 4;
  for (int i = lane; i < kSize * kSize; i += kWarpSize) {
    left[i] = a[i];
    right[i] = operands == Operands::by_rows ? b[i % kSize * kSize + i / kSize] : b[i];
  }
  __syncthreads();

  unsigned of_a[4], of_b[4];  // of b two fragments, of columns 0 to 7 and 8 to 15
  if (operands == Operands::by_lane) {
    for (int i = 0; i < 4; ++i) {
      const std::uint16_t* at = left + (g + i % 2 * 8) * kSize + 2 * t + i / 2 * 8;
      of_a[i] = pair(at[0], at[1]);
      const std::uint16_t* down = right + (2 * t + i % 2 * 8) * kSize + g + i / 2 * 8;
      of_b[i] = pair(down[0], down[kSize]);
    }
  } else {
    const std::uint16_t* row = left + lane % 16 * kSize + lane / 16 * 8;
    load_matrices(of_a, row);
    if (operands == Operands::by_rows) {
      load_matrices(of_b, right + (lane % 8 + lane / 16 * 8) * kSize + lane / 8 % 2 * 8);
    } else {
      load_matrices_transposed(of_b, right + lane % 16 * kSize + lane / 16 * 8);
    }
  }
  for (int half = 0; half < 2; ++half) {
    const unsigned fragment[2] = {of_b[2 * half], of_b[2 * half + 1]};
    float* const out = c + g * kSize + half * 8 + 2 * t;
    float sums[4] = {out[0], out[1], out[8 * kSize], out[8 * kSize + 1]};
    mma_tile<T>(sums, of_a, fragment);
    out[0] = sums[0];
    out[1] = sums[1];
    out[8 * kSize] = sums[2];
    out[8 * kSize + 1] = sums[3];
  }
}

__global__ void copy_every_other_kernel(uint4* to, const uint4* from) {
  SPILLWAY_SHARED_ARRAY(uint4, shared, kWarpSize);
  const int lane = lane_index(), half = kWarpSize / 2;
  AsyncCopies copies;
  for (int group = 0; group < 2; ++group) {
    const int i = group * half + lane;
    if (lane < half) copies.copy_16(&shared[i], from + i, i % 2 == 0);
    copies.commit();
  }
  copies.wait<1>();
  __syncthreads();
  if (lane >= half) to[lane - half] = shared[lane - half];
  copies.wait<0>();
  __syncthreads();
  if (lane >= half) to[lane] = shared[lane];
}

}  // namespace

void multiply(float* c, const std::uint16_t* a, const std::uint16_t* b, bool bf16, Operands operands, cudaStream_t stream) {
  const LaunchShape shape{1, kWarpSize};
  if (bf16) {
    launch("multiply", multiply_kernel<__nv_bfloat16>, shape, stream, c, a, b, operands);
  } else {
    launch("multiply", multiply_kernel<__half>, shape, stream, c, a, b, operands);
  }
}

void copy_every_other(std::uint32_t* to, const std::uint32_t* from, cudaStream_t stream) {
  launch("copy_every_other", copy_every_other_kernel, {1, kWarpSize}, stream, reinterpret_cast<uint4*>(to),
         reinterpret_cast<const uint4*>(from));
}

}  // namespace sample
