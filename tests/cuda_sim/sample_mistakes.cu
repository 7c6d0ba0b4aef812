// The wrong ones of sample_kernels.h.
#include "cuda_sim/sample_kernels.h"

#include "intrinsics/launch.h"
#include "intrinsics/shared_memory.h"
#include "intrinsics/warp.h"

namespace sample {

using namespace spillway::gpu;

namespace {

constexpr int kThreads = 64;

template <bool barrier>
__global__ void neighbour_kernel(float* y, const float* x) {
  SPILLWAY_SHARED_ARRAY(float, all, kThreads);
  all[threadIdx.x] = x[threadIdx.x];
  if constexpr (barrier) __syncthreads();
  y[threadIdx.x] = all[(threadIdx.x + 1) % kThreads];
}

__global__ void divergent_barrier_kernel(float* x) {
  if (threadIdx.x < 32) {
    x[threadIdx.x] = 1;
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void return_before_barrier_kernel(float* x) {
  if (threadIdx.x == 63) return;
  x[threadIdx.x] = 1;
  __syncthreads();
}

__global__ void foreign_mask_kernel(float* x) { x[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1); }

__global__ void mask_of_returned_lane_kernel(float* x) {
  if (threadIdx.x % 32 == 5) return;
  x[threadIdx.x] = __shfl_xor_sync(kFullMask, 1.0f, 1);
}

__global__ void different_warp_operations_kernel(float* x) {
  if (threadIdx.x % 32 < 16) {
    x[threadIdx.x] = __shfl_xor_sync(kFullMask, 1.0f, 1);
  } else {
    x[threadIdx.x] = static_cast<float>(__ballot_sync(kFullMask, 1));
  }
}

__global__ void half_warp_waits_kernel(float* x) {
  if (threadIdx.x % 32 < 16) x[threadIdx.x] = __shfl_xor_sync(kFullMask, 1.0f, 1);
  __syncthreads();
}

__global__ void past_the_end_kernel(float* x, int n) { x[n - 63 + static_cast<int>(threadIdx.x)] = 1; }

__global__ void past_shared_array_kernel(float* x, int index) {
  SPILLWAY_SHARED_ARRAY(float, all, kThreads);
  float* const p = all;
  if (threadIdx.x == 0) p[index] = x[0];
}

__global__ void past_shared_dynamic_kernel(float* x, int index) {
  SPILLWAY_SHARED_DYNAMIC(float, all);
  if (threadIdx.x == 0) all[index] = x[0];
}

__global__ void too_much_shared_kernel(float* x) {
  SPILLWAY_SHARED_ARRAY(float, all, 12 * 1024 + 1);
  x[threadIdx.x] = all[threadIdx.x];
}

__global__ void odd_block_kernel(float* x) { x[threadIdx.x] = 1; }

__global__ void call_runtime_kernel(float* x) {
  int device = 0;
  x[threadIdx.x] = static_cast<float>(cudaGetDevice(&device));
}

void launch_one_block(void (*kernel)(float*), float* x, cudaStream_t stream) { launch("a mistake", kernel, {1, kThreads}, stream, x); }

}  // namespace

void neighbour_without_barrier(float* y, const float* x, cudaStream_t stream) {
  launch("neighbour", neighbour_kernel<false>, {1, kThreads}, stream, y, x);
}
void neighbour(float* y, const float* x, cudaStream_t stream) {
  launch("neighbour", neighbour_kernel<true>, {2, kThreads}, stream, y, x);
}
void divergent_barrier(float* x, cudaStream_t stream) { launch_one_block(divergent_barrier_kernel, x, stream); }
void return_before_barrier(float* x, cudaStream_t stream) { launch_one_block(return_before_barrier_kernel, x, stream); }
void foreign_mask(float* x, cudaStream_t stream) { launch_one_block(foreign_mask_kernel, x, stream); }
void mask_of_returned_lane(float* x, cudaStream_t stream) { launch_one_block(mask_of_returned_lane_kernel, x, stream); }
void different_warp_operations(float* x, cudaStream_t stream) { launch_one_block(different_warp_operations_kernel, x, stream); }
void half_warp_waits(float* x, cudaStream_t stream) { launch_one_block(half_warp_waits_kernel, x, stream); }
void past_the_end(float* x, int n, cudaStream_t stream) { launch("past_the_end", past_the_end_kernel, {1, kThreads}, stream, x, n); }
void past_shared_array(float* x, int index, cudaStream_t stream) {
  launch("past_shared_array", past_shared_array_kernel, {1, kThreads}, stream, x, index);
}
void past_shared_dynamic(float* x, int index, cudaStream_t stream) {
  launch("past_shared_dynamic", past_shared_dynamic_kernel, {1, kThreads, kThreads * sizeof(float)}, stream, x, index);
}
void too_much_shared(float* x, cudaStream_t stream) { launch_one_block(too_much_shared_kernel, x, stream); }
void odd_block(float* x, cudaStream_t stream) { launch("odd_block", odd_block_kernel, {1, 33}, stream, x); }
void call_runtime(float* x, cudaStream_t stream) { launch_one_block(call_runtime_kernel, x, stream); }

}  // namespace sample
