// Model shapes, parameter layout, workspaces and initial values.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/normal.h"
#include "spillway/error.h"
#include "spillway/model.h"
#include "spillway/ops.h"
#include "support/error_of.h"

namespace spillway {
namespace {

using ::spillway::testing::error_of;
using ::testing::HasSubstr;

std::int64_t count_parameters(std::string_view preset) {
  std::int64_t total = 0;
  for (const auto& layer : make_layers(model_preset(preset))) total += layer->num_elements();
  return total;
}

TEST(ModelPreset, PublishedModelsHaveTheirPublishedSizes) {
  EXPECT_EQ(count_parameters("gpt2"), 124439808);
  EXPECT_EQ(count_parameters("gpt2-medium"), 354823168);
  EXPECT_EQ(count_parameters("gpt2-large"), 774030080);
  EXPECT_EQ(count_parameters("gpt2-xl"), 1557611200);
}

TEST(ModelPreset, OwnModelsHaveTheSizesTheirNamesSay) {
  EXPECT_NEAR(static_cast<double>(count_parameters("gpt2-tiny")), 0.2e6, 0.03e6);
  EXPECT_NEAR(static_cast<double>(count_parameters("gpt2-10m")), 10e6, 0.1e6);
}

TEST(ModelPreset, EveryNameIsKnownAndValid) {
  for (const std::string_view name : model_preset_names()) {
    EXPECT_EQ(model_preset(name).name, name);
    EXPECT_NO_THROW(validate(model_preset(name)));
  }
}

TEST(ModelPreset, UnknownNameIsRefusedWithTheClosestOne) {
  const std::string text = error_of<ConfigError>([] { model_preset("gpt2-mediun"); });
  EXPECT_THAT(text, HasSubstr("gpt2-mediun"));
  EXPECT_THAT(text, HasSubstr("did you mean \"gpt2-medium\""));
}

TEST(ModelValidate, EveryBadFieldIsNamedWithItsValue) {
  const auto error_with = [](auto change) {
    ModelSpec spec = model_preset("gpt2-tiny");
    change(spec);
    return error_of<ConfigError>([&] { make_layers(spec); });
  };
  EXPECT_THAT(error_with([](ModelSpec& s) { s.layers = 0; }), HasSubstr("layers is 0"));
  EXPECT_THAT(error_with([](ModelSpec& s) { s.channels = -64; }), HasSubstr("channels is -64"));
  EXPECT_THAT(error_with([](ModelSpec& s) { s.heads = 0; }), HasSubstr("heads is 0"));
  EXPECT_THAT(error_with([](ModelSpec& s) { s.heads = 5; }), HasSubstr("channels (64) is not a multiple of heads (5)"));
  EXPECT_THAT(error_with([](ModelSpec& s) { s.vocabulary = 1LL << 40; }), HasSubstr("vocabulary is 1099511627776"));
  EXPECT_THAT(error_with([](ModelSpec& s) { s.context = 0; }), HasSubstr("context is 0"));
  EXPECT_THAT(error_with([](ModelSpec& s) { s.mlp_channels = -1; }), HasSubstr("mlp_channels is -1"));
  EXPECT_THAT(error_with([](ModelSpec& s) { s.layernorm_epsilon = 0.0f; }), HasSubstr("layernorm_epsilon is 0"));
  EXPECT_THAT(error_with([](ModelSpec& s) { s.layernorm_epsilon = std::nanf(""); }),
              HasSubstr("layernorm_epsilon is nan"));
}

TEST(ModelLayers, ParametersFillEachFlatBufferWithoutGaps) {
  std::set<std::string> names;
  for (const auto& layer : make_layers(model_preset("gpt2-tiny"))) {
    std::int64_t end = 0;
    for (const ParamSpec& param : layer->params()) {
      EXPECT_EQ(param.offset, end) << param.name;
      std::int64_t product = 1;
      for (const std::int64_t extent : param.shape) product *= extent;
      EXPECT_EQ(product, param.num_elements) << param.name;
      EXPECT_TRUE(names.insert(param.name).second) << param.name;
      end += param.num_elements;
    }
    EXPECT_EQ(end, layer->num_elements()) << layer->name();
  }
  EXPECT_EQ(names.size(), 2u + 4 * 12 + 2);
}

TEST(ModelLayers, CarryThePublicNamesAndShapes) {
  const auto layers = make_layers(model_preset("gpt2"));
  ASSERT_EQ(layers.size(), 14u);
  EXPECT_EQ(layers.front()->name(), "embedding");
  EXPECT_EQ(layers[4]->name(), "block 3");
  EXPECT_EQ(layers.back()->name(), "head");
  EXPECT_EQ(layers.back()->tied_layer(), 0);
  EXPECT_EQ(layers[4]->tied_layer(), -1);
  const auto shape_of = [](const Layer& layer, std::string_view name) -> std::vector<std::int64_t> {
    for (const ParamSpec& param : layer.params()) {
      if (param.name == name) return param.shape;
    }
    return {};
  };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shape_of(*layers[0], "wte.weight"), (Shape{50257, 768}));
  EXPECT_EQ(shape_of(*layers[0], "wpe.weight"), (Shape{1024, 768}));
  EXPECT_EQ(shape_of(*layers[4], "h.3.attn.c_attn.weight"), (Shape{2304, 768}));
  EXPECT_EQ(shape_of(*layers[4], "h.3.attn.c_proj.bias"), (Shape{768}));
  EXPECT_EQ(shape_of(*layers[4], "h.3.mlp.c_fc.weight"), (Shape{3072, 768}));
  EXPECT_EQ(shape_of(*layers[4], "h.3.mlp.c_proj.weight"), (Shape{768, 3072}));
  EXPECT_EQ(shape_of(*layers[13], "ln_f.bias"), (Shape{768}));
}

TEST(ModelLayers, HiddenWidthOfTheMlpCanBeGiven) {
  ModelSpec spec = model_preset("gpt2-tiny");
  spec.mlp_channels = 96;
  const auto layers = make_layers(spec);
  EXPECT_EQ(layers[1]->num_elements(), 4 * 64 * 64 + 2 * 64 * 96 + 9 * 64 + 96);
}

// 6 N T plus the attention scores is the usual estimate of a step (Kaplan et al. 2020, arXiv:2001.08361,
// section 2.1); block recompute adds nearly another forward.
TEST(ModelLayers, FlopsAgreeWithTheUsualEstimate) {
  const auto layers = make_layers(model_preset("gpt2"));
  const BatchShape shape{1, 1024};
  double forward = 0.0, backward = 0.0;
  for (const auto& layer : layers) {
    forward += layer->flops(Pass::forward, shape);
    backward += layer->flops(Pass::backward, shape);
  }
  const double matrices = 124439808.0 - 1024 * 768;  // the tied table counts once, as the head's
  const double attention = 2.0 * 12 * 768 * 1024;    // per token, half of the square
  const double estimate = 2.0 * 1024 * matrices + 1024 * attention;
  EXPECT_NEAR(forward / estimate, 1.0, 0.01);
  EXPECT_GT(backward, 2.5 * forward);
  EXPECT_LT(backward, 3.1 * forward);
}

// Scratch sizes under the test's control.
constexpr ScratchSizes kNoScratch = {
    [](DType, std::int64_t, std::int64_t) -> std::int64_t { return 0; },
    [](DType, const MatmulDims&) -> std::int64_t { return 0; },
    [](DType, const MatmulDims&) -> std::int64_t { return 0; },
    [](DType, const AttentionDims&) -> std::int64_t { return 0; },
    [](DType, const AttentionDims&) -> std::int64_t { return 0; },
    [](DType, const LossHeadDims&) -> std::int64_t { return 0; },
};

TEST(ModelWorkspace, ScratchOfTheOpsIsSharedNotSummed) {
  constexpr std::int64_t kBytes = 1 << 20;
  ScratchSizes every = kNoScratch;
  every.layernorm_backward = [](DType, std::int64_t, std::int64_t) { return kBytes; };
  every.linear_forward = every.linear_backward = [](DType, const MatmulDims&) { return kBytes; };
  every.attention_forward = every.attention_backward = [](DType, const AttentionDims&) { return kBytes; };
  every.loss_head = [](DType, const LossHeadDims&) { return kBytes; };
  for (const auto& layer : make_layers(model_preset("gpt2-tiny"))) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const std::int64_t without = layer->workspace_bytes(pass, {2, 64}, DType::bf16, kNoScratch);
      const std::int64_t with = layer->workspace_bytes(pass, {2, 64}, DType::bf16, every);
      EXPECT_EQ(with - without, layer->kind() == LayerKind::embedding ? 0 : kBytes) << layer->name();
    }
  }
}

TEST(ModelWorkspace, BlockKeepsNoMoreThanEighteenWidthsInBackward) {
  const ModelSpec spec = model_preset("gpt2");
  const BatchShape shape{4, 1024};
  const std::int64_t rows = 4096, width = rows * spec.channels * 2, statistics = rows * (2 + spec.heads) * 4;
  const auto layers = make_layers(spec);
  EXPECT_EQ(layers[1]->workspace_bytes(Pass::backward, shape, DType::bf16, kNoScratch), 18 * width + statistics);
  EXPECT_LE(layers[1]->workspace_bytes(Pass::forward, shape, DType::bf16, kNoScratch), 9 * width + statistics);
}

const ParamSpec kNormal{"h.0.mlp.c_fc.weight", {1000, 1000}, 0, 1000000, ParamInit::normal, 0.02f};

std::vector<float> values(const ParamSpec& param, std::uint64_t seed, std::int64_t begin, std::size_t n) {
  std::vector<float> out(n);
  initial_values(param, seed, begin, out);
  return out;
}

TEST(InitialValues, AnyRangeIsThatPartOfTheWhole) {
  const std::vector<float> whole = values(kNormal, 7, 0, 100000);
  for (const auto& [begin, n] : {std::pair{0, 1}, {1, 4097}, {16383, 2}, {16384, 70000}, {99999, 1}, {50, 0}}) {
    const std::vector<float> part = values(kNormal, 7, begin, static_cast<std::size_t>(n));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin)) << begin;
  }
}

TEST(InitialValues, DependOnSeedAndName) {
  const std::vector<float> first = values(kNormal, 7, 0, 1000);
  ParamSpec other = kNormal;
  other.name = "h.1.mlp.c_fc.weight";
  EXPECT_NE(first, values(kNormal, 8, 0, 1000));
  EXPECT_NE(first, values(other, 7, 0, 1000));
}

TEST(InitialValues, AreNormallyDistributed) {
  constexpr std::size_t kCount = 1000000;
  std::vector<float> sample = values(kNormal, 7, 0, kCount);
  double sum = 0.0, squares = 0.0, neighbours = 0.0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double z = static_cast<double>(sample[i]) / 0.02;
    sum += z;
    squares += z * z;
    if (i > 0) neighbours += z * static_cast<double>(sample[i - 1]) / 0.02;
  }
  // Five standard errors each.
  EXPECT_NEAR(sum / kCount, 0.0, 5e-3);
  EXPECT_NEAR(squares / kCount, 1.0, 5 * std::sqrt(2.0) * 1e-3);
  EXPECT_NEAR(neighbours / kCount, 0.0, 5e-3);
  // Kolmogorov-Smirnov distance; the critical value at level 1e-6 is 2.69 / sqrt(n).
  std::sort(sample.begin(), sample.end());
  double distance = 0.0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double expected = 0.5 * std::erfc(-static_cast<double>(sample[i]) / 0.02 / std::sqrt(2.0));
    distance = std::max(distance, std::fabs(expected - (static_cast<double>(i) + 0.5) / kCount));
  }
  EXPECT_LT(distance, 2.69e-3);
}

TEST(InitialValues, GainsAreOneAndBiasesZero) {
  ParamSpec param = kNormal;
  param.init = ParamInit::ones;
  EXPECT_EQ(values(param, 7, 3, 5), std::vector<float>(5, 1.0f));
  param.init = ParamInit::zeros;
  EXPECT_EQ(values(param, 7, 3, 5), std::vector<float>(5, 0.0f));
}

TEST(InitialValues, ResidualProjectionsShrinkWithDepth) {
  const auto layers = make_layers(model_preset("gpt2"));
  for (const ParamSpec& param : layers[1]->params()) {
    if (param.init != ParamInit::normal) continue;
    const bool residual = param.name.find("c_proj") != std::string::npos;
    EXPECT_FLOAT_EQ(param.stddev, residual ? 0.02f / std::sqrt(24.0f) : 0.02f) << param.name;
  }
}

TEST(InverseNormalCdf, InvertsTheDistributionFunction) {
  for (double p = 0x1p-53; p < 0.5; p *= 1.37) {
    const double z = inverse_normal_cdf(p);
    EXPECT_NEAR(0.5 * std::erfc(-z / std::sqrt(2.0)) / p, 1.0, 1e-13) << p;
    EXPECT_EQ(inverse_normal_cdf(1.0 - p), -inverse_normal_cdf(1.0 - (1.0 - p))) << p;
  }
  EXPECT_EQ(inverse_normal_cdf(0.5), 0.0);
}

}  // namespace
}  // namespace spillway
