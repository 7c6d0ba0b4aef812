// The DType of a storage type as CUDA has it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "spillway/dtype.h"

namespace spillway::cuda {

template <class T>
inline constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<__nv_bfloat16> = DType::bf16;
template <>
inline constexpr DType dtype_of<__half> = DType::f16;

}  // namespace spillway::cuda
