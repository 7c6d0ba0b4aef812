#include "pieces.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstring>

#include "base/default_arithmetic.h"

namespace spillway::cpu_adam {
namespace {

constexpr std::int64_t kStreamElements = 64 * 1024;
constexpr std::uintptr_t kStreamAlignment = 32;
constexpr std::uint64_t kPositionsOfAKey = std::uint64_t{1} << 32;

using Sums = std::array<double, kBlock>;

double total(Sums sums) {
  for (std::size_t half = kBlock / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// What kernels take a multiple of.
std::int64_t unit_of(const OptimizerTile& tile) { return tile.moment_format == MomentFormat::block8 ? kMomentBlock : kBlock; }

Piece piece_of(const OptimizerTile& tile, OptimizerKind kind, bool stream, double* square_sums) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(tile.weight) % kStreamAlignment == 0;
  return {.kind = kind,
          .moment_format = tile.moment_format,
          .master = tile.master,
          .master_low = tile.master_low,
          .moments = {tile.moments[0], tile.moments[1]},
          .scales = {tile.scales[0], tile.scales[1]},
          .gradient = tile.gradient,
          .gradient_dtype = tile.gradient_dtype,
          .weight = tile.weight,
          .weight_dtype = tile.weight_dtype,
          .stream_weight = stream && aligned,
          .n = tile.n,
          .position = static_cast<std::uint32_t>(tile.position),
          .square_sums = square_sums};
}

// Less than a unit of elements, in a unit of its own that is filled up with zeros. These change nothing of what the others
// become: a zero is not a block's largest magnitude, and adds nothing to a sum of squares.
class PaddedTile {
 public:
  explicit PaddedTile(const OptimizerTile& tile) : tile_(tile) {
    tile_.n = unit_of(tile);
    const std::int64_t moment_bytes = tile.moment_format == MomentFormat::f32 ? 4 : tile.moment_format == MomentFormat::bf16 ? 2 : 1;
    std::memcpy(gradient_.bytes, tile.gradient, static_cast<std::size_t>(size_of(tile.gradient_dtype) * tile.n));
    tile_.gradient = gradient_.bytes;
    take(tile_.master, 4 * tile.n);
    take(tile_.master_low, 2 * tile.n);
    take(tile_.weight, size_of(tile.weight_dtype) * tile.n);
    for (void*& moment : tile_.moments) take(moment, moment_bytes * tile.n);
    for (std::uint8_t*& scale : tile_.scales) take(scale, 1);
  }

  const OptimizerTile& tile() const { return tile_; }

  void put_back() const {
    for (std::size_t i = 0; i < taken_; ++i) std::memcpy(origins_[i].to, arrays_[i].bytes, origins_[i].size);
  }

 private:
  static constexpr std::size_t kArrays = 7;  // at most: master or master_low with weight, moments and their scales
  struct alignas(64) Array {
    std::byte bytes[4 * kMomentBlock];
  };
  struct Origin {
    void* to;
    std::size_t size;
  };

  template <class T>
  void take(T*& array, std::int64_t bytes) {
    if (array == nullptr) return;
    std::byte* const copy = arrays_[taken_].bytes;
    origins_[taken_] = {array, static_cast<std::size_t>(bytes)};
    std::memcpy(copy, array, static_cast<std::size_t>(bytes));
    array = reinterpret_cast<T*>(copy);
    ++taken_;
  }

  OptimizerTile tile_;
  Array gradient_{};
  std::array<Array, kArrays> arrays_{};
  std::array<Origin, kArrays> origins_{};
  std::size_t taken_ = 0;
};

// Positions of the tile agree in their upper halves. `square_sums` start with that of the tile's first element.
void update_part(const Kernels& kernels, const OptimizerTile& tile, const OptimizerParams& params, bool stream, double* square_sums) {
  const OptimizerScalars scalars = optimizer_scalars(params, tile.position);
  const std::int64_t whole = tile.n - tile.n % unit_of(tile);
  if (whole > 0) kernels.update(piece_of(part_of(tile, 0, whole), params.kind, stream, square_sums), scalars);
  if (whole == tile.n) return;
  const PaddedTile rest(part_of(tile, whole, tile.n - whole));
  kernels.update(piece_of(rest.tile(), params.kind, false, square_sums), scalars);
  rest.put_back();
}

}  // namespace

bool worth_streaming(const OptimizerTile& tile) {
  return tile.master != nullptr && tile.weight != nullptr && tile.weight_dtype != DType::f32 && tile.n >= kStreamElements;
}

void update_tile(const Kernels& kernels, const OptimizerTile& tile, const OptimizerParams& params, bool stream) {
  assert(tile.n >= 0);
  const DefaultArithmetic scope;
  Sums sums{};
  std::int64_t n = 0;
  for (std::int64_t first = 0; first < tile.n; first += n) {
    const std::uint64_t left = kPositionsOfAKey - (tile.position + static_cast<std::uint64_t>(first)) % kPositionsOfAKey;
    n = static_cast<std::int64_t>(std::min(static_cast<std::uint64_t>(tile.n - first), left));
    update_part(kernels, part_of(tile, first, n), params, stream, tile.statistics != nullptr ? sums.data() : nullptr);
    // The next part starts with its own first sum; to the total, which one is first makes no difference.
    std::rotate(sums.begin(), sums.begin() + n % kBlock, sums.end());
  }
  if (tile.statistics != nullptr) tile.statistics->square_sum = total(sums);
}

double square_sum(const Kernels& kernels, const void* gradient, DType dtype, std::int64_t n) {
  const DefaultArithmetic scope;
  Sums sums{};
  const std::int64_t whole = n - n % kBlock;
  kernels.add_squares(gradient, dtype, whole, sums.data());
  alignas(64) std::array<std::byte, 4 * kBlock> rest{};
  const std::byte* const end = static_cast<const std::byte*>(gradient) + whole * size_of(dtype);
  if (whole < n) {
    std::memcpy(rest.data(), end, static_cast<std::size_t>((n - whole) * size_of(dtype)));
    kernels.add_squares(rest.data(), dtype, kBlock, sums.data());
  }
  return total(sums);
}

}  // namespace spillway::cpu_adam
