// Conversions of whole arrays between the stored types and f32.
#pragma once

#include <cstddef>
#include <span>

#include "spillway/dtype.h"

namespace spillway {

// The first out.size() values of `bytes`, which are of `dtype`.
void widen(DType dtype, std::span<const std::byte> bytes, std::span<float> out);

// Rounds (to nearest, ties to even) into `out`, which has room for all.
void narrow(DType dtype, std::span<const float> values, std::span<std::byte> out);

// To the nearest values of `dtype`.
void round_values(DType dtype, std::span<float> values);

}  // namespace spillway
