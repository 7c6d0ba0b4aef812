// What each optimizer keeps, and where: the description functions of spillway/optimizer.h.
#include <cassert>

#include "spillway/optimizer.h"

namespace spillway {

namespace {

constexpr std::int64_t kPage = 4096;

constexpr std::array kAdamMoments = {MomentTraits{"exp_avg", MomentLaw::square}, MomentTraits{"exp_avg_sq", MomentLaw::fourth_power}};
constexpr std::array kAdagradMoments = {MomentTraits{"sum", MomentLaw::fourth_power}};
constexpr std::array kLionMoments = {MomentTraits{"exp_avg", MomentLaw::square}};
constexpr std::array kMomentumMoments = {MomentTraits{"momentum_buffer", MomentLaw::square}};

// In the order of OptimizerKind.
constexpr std::array<OptimizerTraits, kOptimizerKinds> kTraits = {{
    {"adam", kAdamMoments},
    {"adagrad", kAdagradMoments},
    {"lion", kLionMoments},
    {"sgd", {}},
    {"sgd_momentum", kMomentumMoments},
}};

constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }
constexpr std::int64_t num_blocks(std::int64_t n) { return (n + kMomentBlock - 1) / kMomentBlock; }

constexpr std::int64_t width_of(MomentFormat format) {
  return format == MomentFormat::f32 ? 4 : format == MomentFormat::bf16 ? 2 : 1;
}

void* advance(void* array, std::int64_t bytes) { return array == nullptr ? nullptr : static_cast<std::byte*>(array) + bytes; }

}  // namespace

const OptimizerTraits& traits_of(OptimizerKind kind) { return kTraits[static_cast<std::size_t>(kind)]; }

std::string_view name_of(MomentFormat format) {
  switch (format) {
    case MomentFormat::f32: return "fp32";
    case MomentFormat::bf16: return "bf16";
    case MomentFormat::block8: return "8bit";
  }
  return "?";
}

StateLayout state_layout(const StateFormat& format, std::int64_t n) {
  StateLayout layout{format, n, {}, {}, round_up(n * 4, kPage)};
  for (int m = 0; m < format.num_moments(); ++m) {
    const auto moment = static_cast<std::size_t>(m);
    const std::int64_t values = n * width_of(format.moments);
    layout.moments[moment] = layout.bytes;
    std::int64_t section = values;
    if (format.moments == MomentFormat::block8) {
      section = round_up(values, kMomentBlock);
      layout.scales[moment] = layout.bytes + section;
      section += num_blocks(n);
    }
    layout.bytes += round_up(section, kPage);
  }
  return layout;
}

std::int64_t state_traffic(const StateFormat& format, std::int64_t n) {
  const std::int64_t scales = format.moments == MomentFormat::block8 ? num_blocks(n) : 0;
  return 2 * (4 * n + format.num_moments() * (n * width_of(format.moments) + scales));
}

OptimizerTile tile_at(std::byte* state, const StateLayout& layout) {
  OptimizerTile tile;
  tile.master = reinterpret_cast<float*>(state);
  tile.moment_format = layout.format.moments;
  tile.n = layout.n;
  for (int m = 0; m < layout.format.num_moments(); ++m) {
    const auto moment = static_cast<std::size_t>(m);
    tile.moments[moment] = state + layout.moments[moment];
    if (layout.format.moments == MomentFormat::block8) tile.scales[moment] = reinterpret_cast<std::uint8_t*>(state + layout.scales[moment]);
  }
  return tile;
}

OptimizerTile part_of(const OptimizerTile& tile, std::int64_t first, std::int64_t n) {
  assert(0 <= first && 0 <= n && first + n <= tile.n);
  assert(tile.moment_format != MomentFormat::block8 || (first % kMomentBlock == 0 && (n % kMomentBlock == 0 || first + n == tile.n)));
  OptimizerTile part = tile;
  if (tile.master != nullptr) part.master += first;
  if (tile.master_low != nullptr) part.master_low += first;
  for (std::size_t m = 0; m < kMaxMoments; ++m) {
    part.moments[m] = advance(tile.moments[m], first * width_of(tile.moment_format));
    if (tile.scales[m] != nullptr) part.scales[m] += first / kMomentBlock;
  }
  if (tile.gradient != nullptr) part.gradient = static_cast<const std::byte*>(tile.gradient) + first * size_of(tile.gradient_dtype);
  part.weight = advance(tile.weight, first * size_of(tile.weight_dtype));
  part.n = n;
  part.position += static_cast<std::uint64_t>(first);
  part.statistics = nullptr;
  return part;
}

}  // namespace spillway
