// Small kernels for the tests of the simulation itself: some right, some with one planted mistake each.
#pragma once

#include <cuda_runtime_api.h>

namespace sample {

// Right.
void fill(float* x, int n, float value, cudaStream_t stream);                                  // x[i] = value + i
void scale(float* y, const float* x, int n, float factor, cudaStream_t stream);                // y = factor x
void row_softmax(float* y, const float* x, int rows, int columns, cudaStream_t stream);         // one block of 64 threads a row
void reverse_rows(float* x, int rows, int columns, cudaStream_t stream);                        // through dynamic shared memory
void warp_operations(unsigned* results, cudaStream_t stream);                                  // [kWarpResults][64], one block of 64
inline constexpr int kWarpResults = 9;
void count_up(unsigned* counter, int blocks, cudaStream_t stream);                              // atomically, 32 threads a block
void coordinates(int* out, dim3 grid, dim3 block, cudaStream_t stream);                        // out[global] = its own index
void arithmetic(float* out, float a, float b, float c, cudaStream_t stream);                    // out[6]: mul add sub div sqrt fma
void round_trip(float* out, unsigned short* bits, const float* x, int n, bool half, cudaStream_t stream);
void unset_shared(float* out, cudaStream_t stream);                                            // out[64]: what shared arrays hold at first
void big_shared(float* out, std::size_t shared_bytes, cudaStream_t stream);

// Wrong.
void neighbour_without_barrier(float* y, const float* x, cudaStream_t stream);  // one block of 64
void neighbour(float* y, const float* x, cudaStream_t stream);                  // the same with it
void divergent_barrier(float* x, cudaStream_t stream);
void return_before_barrier(float* x, cudaStream_t stream);
void foreign_mask(float* x, cudaStream_t stream);
void mask_of_returned_lane(float* x, cudaStream_t stream);
void different_warp_operations(float* x, cudaStream_t stream);
void half_warp_waits(float* x, cudaStream_t stream);  // a deadlock
void past_the_end(float* x, int n, cudaStream_t stream);
void past_shared_array(float* x, int index, cudaStream_t stream);
void past_shared_dynamic(float* x, int index, cudaStream_t stream);
void too_much_shared(float* x, cudaStream_t stream);
void odd_block(float* x, cudaStream_t stream);
void call_runtime(float* x, cudaStream_t stream);

// As launch(), without its exception: the runtime's answer.
cudaError_t try_launch(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream);

}  // namespace sample
