// What plans and devices are told of an optimizer's state: sizes, places and parts.
#include "spillway/optimizer.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

constexpr std::int64_t kSizes[] = {0, 1, 255, 256, 257, 4096, 1 << 20, (1 << 20) + 3};

struct Section {
  std::int64_t begin;
  std::int64_t end;
};

// The stretches of bytes that a tile's pointers promise.
std::vector<Section> sections_of(const StateLayout& layout) {
  const std::int64_t width = layout.format.moments == MomentFormat::f32 ? 4 : layout.format.moments == MomentFormat::bf16 ? 2 : 1;
  std::vector<Section> sections = {{0, layout.n * 4}};
  for (std::size_t m = 0; m < static_cast<std::size_t>(layout.format.num_moments()); ++m) {
    sections.push_back({layout.moments[m], layout.moments[m] + layout.n * width});
    if (layout.format.moments == MomentFormat::block8) sections.push_back({layout.scales[m], layout.scales[m] + (layout.n + 255) / 256});
  }
  return sections;
}

TEST(OptimizerState, SectionsFollowEachOtherWithoutOverlap) {
  for (int kind = 0; kind < kOptimizerKinds; ++kind) {
    for (int format = 0; format < kMomentFormats; ++format) {
      for (const std::int64_t n : kSizes) {
        const StateLayout layout = state_layout({static_cast<OptimizerKind>(kind), static_cast<MomentFormat>(format)}, n);
        std::int64_t end = 0;
        for (const Section& section : sections_of(layout)) {
          EXPECT_LE(end, section.begin) << kind << " " << format << " " << n;
          EXPECT_EQ(section.begin % 256, 0);
          end = section.end;
        }
        EXPECT_LE(end, layout.bytes);
        EXPECT_LE(layout.bytes - end, 4096 * 3) << "no more than the padding of each section";
        EXPECT_EQ(layout.bytes % 4096, 0);
      }
    }
  }
}

TEST(OptimizerState, EveryKindKeepsWhatPyTorchKeeps) {
  const auto names = [](OptimizerKind kind) {
    std::vector<std::string_view> found;
    for (const MomentTraits& moment : traits_of(kind).moments) found.push_back(moment.name);
    return found;
  };
  using Names = std::vector<std::string_view>;
  EXPECT_EQ(names(OptimizerKind::adam), (Names{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(names(OptimizerKind::adagrad), (Names{"sum"}));
  EXPECT_EQ(names(OptimizerKind::lion), (Names{"exp_avg"}));
  EXPECT_EQ(names(OptimizerKind::sgd), (Names{}));
  EXPECT_EQ(names(OptimizerKind::sgd_momentum), (Names{"momentum_buffer"}));
}

TEST(OptimizerState, BytesPerParameter) {
  constexpr std::int64_t n = 1 << 20;
  const auto bytes = [](OptimizerKind kind, MomentFormat format) { return state_layout({kind, format}, n).bytes; };
  EXPECT_EQ(bytes(OptimizerKind::adam, MomentFormat::f32), 12 * n);
  EXPECT_EQ(bytes(OptimizerKind::adam, MomentFormat::bf16), 8 * n);
  EXPECT_EQ(bytes(OptimizerKind::adam, MomentFormat::block8), 6 * n + 2 * n / 256);
  EXPECT_EQ(bytes(OptimizerKind::lion, MomentFormat::bf16), 6 * n);
  EXPECT_EQ(bytes(OptimizerKind::sgd, MomentFormat::f32), 4 * n);
  EXPECT_EQ(state_traffic({OptimizerKind::adam, MomentFormat::f32}, n), 24 * n);
  EXPECT_EQ(state_traffic({OptimizerKind::adam, MomentFormat::block8}, n), 12 * n + 4 * n / 256);
}

TEST(OptimizerState, PartsPointWhereTheWholeDoes) {
  for (int format = 0; format < kMomentFormats; ++format) {
    const StateLayout layout = state_layout({OptimizerKind::adam, static_cast<MomentFormat>(format)}, 1000);
    std::vector<std::byte> memory(static_cast<std::size_t>(layout.bytes));
    std::vector<bf16> gradient(1000);
    std::vector<f16> weight(1000);
    OptimizerTile tile = tile_at(memory.data(), layout);
    tile.gradient = gradient.data();
    tile.gradient_dtype = DType::bf16;
    tile.weight = weight.data();
    tile.weight_dtype = DType::f16;
    tile.position = 512;
    GradientStatistics statistics{};
    tile.statistics = &statistics;
    const std::int64_t width = layout.format.moments == MomentFormat::f32 ? 4 : layout.format.moments == MomentFormat::bf16 ? 2 : 1;
    const OptimizerTile part = part_of(tile, 768, 232);
    EXPECT_EQ(part.n, 232);
    EXPECT_EQ(part.position, 512u + 768u);
    EXPECT_EQ(part.master, tile.master + 768);
    EXPECT_EQ(part.gradient, gradient.data() + 768);
    EXPECT_EQ(part.weight, weight.data() + 768);
    EXPECT_EQ(part.statistics, nullptr);
    for (std::size_t m = 0; m < 2; ++m) {
      EXPECT_EQ(part.moments[m], memory.data() + layout.moments[m] + 768 * width);
      const auto* scales = reinterpret_cast<std::uint8_t*>(memory.data() + layout.scales[m] + 3);
      EXPECT_EQ(part.scales[m], layout.format.moments == MomentFormat::block8 ? scales : nullptr);
    }
  }
}

}  // namespace
}  // namespace spillway
