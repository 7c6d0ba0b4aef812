// The operations that are mostly products of matrices, for storage type T (float, __nv_bfloat16, __half). Arguments,
// aliasing and scratch as in spillway/ops.h; asynchronous on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include "spillway/ops.h"

namespace spillway::cuda {

class Gemm;

template <class T>
void linear_forward(Gemm& gemm, cudaStream_t stream, const LinearForward& op);
template <class T>
void linear_backward(Gemm& gemm, cudaStream_t stream, const LinearBackward& op);
template <class T>
void loss_head(Gemm& gemm, cudaStream_t stream, const LossHead& op);

}  // namespace spillway::cuda
