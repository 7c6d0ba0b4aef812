// The optimizer update on the host device: adam_update() on pieces of a tile side by side. How a tile is
// cut does not change the bits (spillway/cpu_adam.h).
#include "host/kernels.h"
#include "host/partition.h"

namespace spillway::host {

namespace {

constexpr std::int64_t kAdamPiece = 65536;

}  // namespace

void adam(const AdamTile& tile, const AdamParams& params) {
  for_each_piece(Cut{tile.n, kAdamPiece}, [&](std::int64_t first, std::int64_t n) {
    AdamTile part = tile;
    part.master += first;
    part.exp_avg += first;
    part.exp_avg_sq += first;
    part.gradient = static_cast<const std::byte*>(tile.gradient) + first * size_of(tile.gradient_dtype);
    if (tile.weight) part.weight = static_cast<std::byte*>(tile.weight) + first * size_of(tile.weight_dtype);
    part.n = n;
    adam_update(part, params);
  });
}

}  // namespace spillway::host
