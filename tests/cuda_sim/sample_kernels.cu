// The right ones of sample_kernels.h.
#include "cuda_sim/sample_kernels.h"

#include "intrinsics/launch.h"
#include "intrinsics/math.h"
#include "intrinsics/shared_memory.h"
#include "intrinsics/warp.h"

namespace sample {

using namespace spillway::gpu;

namespace {

constexpr int kThreads = 64;

__global__ void fill_kernel(float* x, int n, float value) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i] = value + static_cast<float>(i);
}

__global__ void scale_kernel(float* y, const float* x, int n, float factor) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = factor * x[i];
}

__global__ void __launch_bounds__(kThreads) row_softmax_kernel(float* y, const float* x, int columns) {
  const float* const row = x + blockIdx.x * columns;
  float largest = -INFINITY;
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += kThreads) largest = fmaxf(largest, row[c]);
  largest = block_max(largest);
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += kThreads) sum += fast_exp(row[c] - largest);
  sum = block_sum(sum);
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += kThreads) y[blockIdx.x * columns + c] = fast_exp(row[c] - largest) / sum;
}

template <class T>
__global__ void reverse_rows_kernel(T* x, int columns) {
  SPILLWAY_SHARED_DYNAMIC(T, row);
  T* const own = x + blockIdx.x * columns;
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += kThreads) row[c] = own[c];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < columns; c += kThreads) own[c] = row[columns - 1 - c];
}

__global__ void warp_operations_kernel(unsigned* results) {
  const unsigned value = threadIdx.x * 7;
  unsigned* const out = results + threadIdx.x;
  out[0 * kThreads] = __shfl_down_sync(kFullMask, value, 3);
  out[1 * kThreads] = __shfl_up_sync(kFullMask, value, 2, 8);
  out[2 * kThreads] = __shfl_xor_sync(kFullMask, value, 5);
  out[3 * kThreads] = __shfl_sync(kFullMask, value, 9, 8);
  out[4 * kThreads] = __ballot_sync(kFullMask, threadIdx.x % 3 == 0);
  out[5 * kThreads] = __any_sync(kFullMask, threadIdx.x == 40) * 2 + __all_sync(kFullMask, threadIdx.x >= 32);
  out[6 * kThreads] = shuffle_xor(value, 16) + broadcast(value, 31) * 1000 + shuffle_down(value, 30) * 1000000;
  // Halves of a warp go their own ways, one of them twice.
  const unsigned half = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
  unsigned turned = __shfl_xor_sync(half, value, 1);
  if (threadIdx.x % 32 < 16) turned = __shfl_xor_sync(half, turned, 2);
  out[7 * kThreads] = turned;
  __syncwarp();
  out[8 * kThreads] = static_cast<unsigned>(warp_sum(static_cast<double>(value)));
}

__global__ void count_up_kernel(unsigned* counter) { atomicAdd(counter, 1u); }

__global__ void coordinates_kernel(int* out) {
  const int block = static_cast<int>(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  const int index = block * threads_in_block() + thread_in_block();
  out[index] = index + (lane_index() == index % 32 ? 0 : 1000000);
}

__global__ void arithmetic_kernel(float* out, float a, float b, float c) {
  if (threadIdx.x == 0) {
    out[0] = mul_rn(a, b);
    out[1] = add_rn(a, b);
    out[2] = sub_rn(a, b);
    out[3] = div_rn(a, b);
    out[4] = sqrt_rn(a);
    out[5] = fma_rn(a, b, c);
  }
}

__device__ unsigned short bits_of(__half x) { return __half_as_ushort(x); }
__device__ unsigned short bits_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }

template <class T>
__global__ void round_trip_kernel(float* out, unsigned short* bits, const float* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) {
    const T narrow = from_float<T>(x[i]);
    bits[i] = bits_of(narrow);
    out[i] = to_float(narrow);
  }
}

__global__ void unset_shared_kernel(float* out) {
  SPILLWAY_SHARED_ARRAY(float, once, 64);
  out[threadIdx.x] = once[threadIdx.x];
  once[threadIdx.x] = 1;
}

__global__ void big_shared_kernel(float* out, int n) {
  SPILLWAY_SHARED_DYNAMIC(float, all);
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) all[i] = static_cast<float>(i);
  __syncthreads();
  if (threadIdx.x == 0) *out = all[n - 1];
}

unsigned blocks_for(int n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

}  // namespace

void fill(float* x, int n, float value, cudaStream_t stream) {
  launch("fill", fill_kernel, {blocks_for(n), kThreads}, stream, x, n, value);
}

void scale(float* y, const float* x, int n, float factor, cudaStream_t stream) {
  launch("scale", scale_kernel, {blocks_for(n), kThreads}, stream, y, x, n, factor);
}

void row_softmax(float* y, const float* x, int rows, int columns, cudaStream_t stream) {
  launch("row_softmax", row_softmax_kernel, {static_cast<unsigned>(rows), kThreads}, stream, y, x, columns);
}

void reverse_rows(float* x, int rows, int columns, cudaStream_t stream) {
  const LaunchShape shape{static_cast<unsigned>(rows), kThreads, sizeof(float) * static_cast<std::size_t>(columns)};
  launch("reverse_rows", reverse_rows_kernel<float>, shape, stream, x, columns);
}

void warp_operations(unsigned* results, cudaStream_t stream) {
  launch("warp_operations", warp_operations_kernel, {1, kThreads}, stream, results);
}

void count_up(unsigned* counter, int blocks, cudaStream_t stream) {
  launch("count_up", count_up_kernel, {static_cast<unsigned>(blocks), 32}, stream, counter);
}

void coordinates(int* out, dim3 grid, dim3 block, cudaStream_t stream) {
  launch("coordinates", coordinates_kernel, {grid, block}, stream, out);
}

// The doubles become floats, as the kernel's parameters say.
void arithmetic(float* out, float a, float b, float c, cudaStream_t stream) {
  launch("arithmetic", arithmetic_kernel, {1, 32}, stream, out, static_cast<double>(a), b, c);
}

void round_trip(float* out, unsigned short* bits, const float* x, int n, bool half, cudaStream_t stream) {
  const LaunchShape shape{blocks_for(n), kThreads};
  if (half) {
    launch("round_trip", round_trip_kernel<__half>, shape, stream, out, bits, x, n);
  } else {
    launch("round_trip", round_trip_kernel<__nv_bfloat16>, shape, stream, out, bits, x, n);
  }
}

void unset_shared(float* out, cudaStream_t stream) { launch("unset_shared", unset_shared_kernel, {2, kThreads}, stream, out); }

void big_shared(float* out, std::size_t shared_bytes, cudaStream_t stream) {
  launch("big_shared", big_shared_kernel, {1, kThreads, shared_bytes}, stream, out, static_cast<int>(shared_bytes / sizeof(float)));
}

cudaError_t try_launch(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, count_up_kernel, nullptr);
}

}  // namespace sample
