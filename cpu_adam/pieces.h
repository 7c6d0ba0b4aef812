// A tile, cut into the pieces that kernels take.
#pragma once

#include "kernels.h"

namespace spillway::cpu_adam {

// Whether weights of the tile are better written past the cache: they are not read again soon, unless all of the tile fits
// in a second-level cache.
bool worth_streaming(const OptimizerTile& tile);

// The tile by these kernels, on this thread. `stream`: worth_streaming(), of the whole that the tile may be a part of.
void update_tile(const Kernels& kernels, const OptimizerTile& tile, const OptimizerParams& params, bool stream);

// The sum of the squares of n elements, in the order stated at GradientStatistics.
double square_sum(const Kernels& kernels, const void* gradient, DType dtype, std::int64_t n);

}  // namespace spillway::cpu_adam
