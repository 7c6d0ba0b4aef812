// The public update: chooses the instruction set and hands the tile to its kernels.
#include <algorithm>
#include <cassert>

#include "base/parallel.h"
#include "isa.h"
#include "pieces.h"
#include "spillway/optimizer.h"

namespace spillway {

using cpu_adam::Kernels;

void optimizer_update(const OptimizerTile& tile, const OptimizerParams& params) {
  cpu_adam::update_tile(cpu_adam::current_isa().kernels(), tile, params, cpu_adam::worth_streaming(tile));
}

void optimizer_update_with(std::string_view isa, const OptimizerTile& tile, const OptimizerParams& params) {
  const Kernels& kernels = cpu_adam::find_isa(isa, "the caller of optimizer_update_with()").kernels();
  cpu_adam::update_tile(kernels, tile, params, cpu_adam::worth_streaming(tile));
}

namespace {

// Elements a thread takes at a time, a multiple of kMomentBlock: as many as leave each thread about four pieces, within
// bounds. The processor's prefetchers start anew with each piece's arrays, which shows in short ones.
std::int64_t piece_size(std::int64_t n) {
  constexpr std::int64_t kLeast = 64 * 1024, kMost = 256 * 1024;
  return std::clamp(n / (4 * parallel_threads()) / kMomentBlock * kMomentBlock, kLeast, kMost);
}

}  // namespace

void optimizer_update_parallel(const OptimizerTile& tile, const OptimizerParams& params) {
  assert(tile.statistics == nullptr);
  const Kernels& kernels = cpu_adam::current_isa().kernels();
  const bool stream = cpu_adam::worth_streaming(tile);
  const std::int64_t size = piece_size(tile.n);
  parallel_for((tile.n + size - 1) / size, [&](std::int64_t piece) {
    const std::int64_t first = piece * size;
    cpu_adam::update_tile(kernels, part_of(tile, first, std::min(size, tile.n - first)), params, stream);
  });
}

GradientStatistics gradient_statistics(const void* gradient, DType dtype, std::int64_t n) {
  return {cpu_adam::square_sum(cpu_adam::current_isa().kernels(), gradient, dtype, n)};
}

}  // namespace spillway
