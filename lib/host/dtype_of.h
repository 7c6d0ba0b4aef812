// The DType of a storage type.
#pragma once

#include "spillway/dtype.h"

namespace spillway::host {

template <class T>
inline constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;

}  // namespace spillway::host
