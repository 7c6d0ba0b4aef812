// The public update: chooses the instruction set and hands the tile to its kernels.
#include <algorithm>
#include <cassert>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/text.h"
#include "pieces.h"
#include "spillway/error.h"
#include "spillway/optimizer.h"

namespace spillway {
namespace {

using cpu_adam::Kernels;

constexpr std::int64_t kParallelPiece = 64 * 1024;  // elements; a multiple of kMomentBlock

const Kernels& active() {
  active_isa();
  return cpu_adam::scalar_kernels();
}

}  // namespace

void optimizer_update(const OptimizerTile& tile, const OptimizerParams& params) {
  cpu_adam::update_tile(active(), tile, params, cpu_adam::worth_streaming(tile));
}

void optimizer_update_with(std::string_view isa, const OptimizerTile& tile, const OptimizerParams& params) {
  const std::vector<std::string_view> usable = available_isas();
  if (std::find(usable.begin(), usable.end(), isa) == usable.end()) {
    throw ConfigError(std::string("[cpu_adam] the caller of optimizer_update_with() names an unknown instruction set \"").append(isa)
                          .append("\"").append(did_you_mean(isa, usable)));
  }
  cpu_adam::update_tile(cpu_adam::scalar_kernels(), tile, params, cpu_adam::worth_streaming(tile));
}

void optimizer_update_parallel(const OptimizerTile& tile, const OptimizerParams& params) {
  assert(tile.statistics == nullptr);
  const Kernels& kernels = active();
  const bool stream = cpu_adam::worth_streaming(tile);
  parallel_for((tile.n + kParallelPiece - 1) / kParallelPiece, [&](std::int64_t piece) {
    const std::int64_t first = piece * kParallelPiece;
    cpu_adam::update_tile(kernels, part_of(tile, first, std::min(kParallelPiece, tile.n - first)), params, stream);
  });
}

GradientStatistics gradient_statistics(const void* gradient, DType dtype, std::int64_t n) {
  return {cpu_adam::square_sum(active(), gradient, dtype, n)};
}

}  // namespace spillway
