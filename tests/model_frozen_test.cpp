// Frozen parameters: how patterns choose them, where they lie, and that lying elsewhere changes no value.
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/frozen.h"
#include "spillway/error.h"
#include "spillway/model.h"
#include "support/error_of.h"
#include "support/resident_model.h"

namespace spillway {
namespace {

using ::spillway::testing::error_of;
using test::InputGradient;
using test::ResidentModel;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Odd sizes, so that what follows a bias of an odd number of elements is misaligned.
ModelSpec odd_spec() {
  ModelSpec spec;
  spec.name = "odd";
  spec.layers = 2;
  spec.channels = 15;
  spec.heads = 3;
  spec.vocabulary = 37;
  spec.context = 7;
  spec.mlp_channels = 19;
  return spec;
}

std::vector<std::string> names_of(const std::vector<std::unique_ptr<Layer>>& layers) {
  std::vector<std::string> names;
  for (const auto& layer : layers) {
    for (const ParamSpec& param : layer->params()) names.push_back(param.name);
  }
  return names;
}

// Subsets of the names: none but one, all but one, halves at random.
std::vector<std::vector<std::string>> subsets_of(std::vector<std::string> names) {
  std::vector<std::vector<std::string>> subsets;
  std::mt19937 random(5);
  for (const std::string& name : names) {
    subsets.push_back({name});
    subsets.push_back(names);
    std::erase(subsets.back(), name);
    subsets.emplace_back();
    while (subsets.back().empty()) {
      for (const std::string& other : names) {
        if (random() % 2 == 0) subsets.back().push_back(other);
      }
    }
  }
  return subsets;
}

TEST(FrozenPatterns, MatchWholeNames) {
  const std::vector<std::string> names = {"wte.weight", "h.1.ln_1.bias", "h.11.ln_1.bias", "h.1.ln_1.weight"};
  const auto matched = [&](std::vector<std::string> patterns) { return match_frozen(patterns, names); };
  EXPECT_THAT(matched({}), ElementsAre(false, false, false, false));
  EXPECT_THAT(matched({"wte.weight"}), ElementsAre(true, false, false, false));
  EXPECT_THAT(matched({"*"}), ElementsAre(true, true, true, true));
  EXPECT_THAT(matched({"h.1.*"}), ElementsAre(false, true, false, true));
  EXPECT_THAT(matched({"h.?.*"}), ElementsAre(false, true, false, true));
  EXPECT_THAT(matched({"h.1*.bias"}), ElementsAre(false, true, true, false)) << "* may be empty";
  EXPECT_THAT(matched({"h.1?.ln_?.bias"}), ElementsAre(false, false, true, false));
  EXPECT_THAT(matched({"*weight", "h.11.ln_1.bias"}), ElementsAre(true, false, true, true));
  EXPECT_THAT(matched({"**.*ln**"}), ElementsAre(false, true, true, true));
}

TEST(FrozenPatterns, OneThatMatchesNothingIsNamedWithTheClosestParameter) {
  const auto error = [](const std::string& pattern) {
    const std::vector<std::string> patterns = {"wpe.weight", pattern};
    return error_of<ConfigError>([&] { make_layers(model_preset("gpt2-tiny"), patterns); });
  };
  EXPECT_EQ(error("wte.weigth"), "spillway.frozen: \"wte.weigth\" matches no parameter of the model; the closest is "
                                 "\"wte.weight\"; * stands for any characters, ? for one");
  EXPECT_THAT(error("h.2.atn.*.bias"), AllOf(HasSubstr("\"h.2.atn.*.bias\""), HasSubstr("closest is \"h.2.attn.c_attn.bias\"")));
  EXPECT_THAT(error("wte"), HasSubstr("closest is \"wte.weight\"")) << "a part of a name is not the name";
  EXPECT_THAT(error("H.0.ln_1.bias"), HasSubstr("closest is \"h.0.ln_1.bias\""));
  EXPECT_THAT(error("h.0.ln_1.bias "), HasSubstr("closest is \"h.0.ln_1.bias\""));
  EXPECT_THAT(error("?"), HasSubstr("matches no parameter"));
}

TEST(FrozenPatterns, SomethingIsLeftToTrain) {
  const std::vector<std::string> all = {"*"};
  EXPECT_EQ(error_of<ConfigError>([&] { make_layers(odd_spec(), all); }),
            "spillway.frozen: all 28 parameters of model \"odd\" match; nothing is left to train: leave at least one out");
}

TEST(FrozenLayout, FrozenParametersFollowTheOthersInTheSameOrder) {
  const auto all = make_layers(odd_spec());
  for (const std::vector<std::string>& frozen : subsets_of(names_of(all))) {
    const auto layers = make_layers(odd_spec(), frozen);
    ASSERT_EQ(layers.size(), all.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      std::vector<std::string> expected, names;
      for (const bool trainable : {true, false}) {
        for (const ParamSpec& param : all[i]->params()) {
          if ((std::ranges::find(frozen, param.name) == frozen.end()) == trainable) expected.push_back(param.name);
        }
      }
      std::int64_t end = 0, trainable_end = 0;
      for (const ParamSpec& param : layers[i]->params()) {
        EXPECT_EQ(param.offset, end) << param.name;
        EXPECT_EQ(param.trainable, std::ranges::find(frozen, param.name) == frozen.end()) << param.name;
        end += param.num_elements;
        if (param.trainable) trainable_end = end;
        names.push_back(param.name);
      }
      EXPECT_EQ(names, expected);
      EXPECT_EQ(end, layers[i]->num_elements());
      EXPECT_EQ(end, all[i]->num_elements());
      EXPECT_EQ(trainable_end, layers[i]->trainable_elements());
    }
  }
  for (const auto& layer : all) EXPECT_EQ(layer->trainable_elements(), layer->num_elements());
}

// Everything a pass leaves behind, by parameter name.
struct Outcome {
  double loss, backward_loss;
  std::vector<float> logits;
  std::map<std::string, std::vector<float>> gradients;
  std::map<std::string, std::vector<float>> weights;  // as loaded: initial_values()
};

Outcome run(DType dtype, const std::vector<std::string>& frozen) {
  const ModelSpec spec = odd_spec();
  constexpr BatchShape shape{3, 5};
  ResidentModel model(spec, dtype, shape, InputGradient::over_dy, frozen);
  model.load([](const ParamSpec& param) {
    std::vector<float> values(static_cast<std::size_t>(param.num_elements));
    initial_values(param, 11, 0, values);
    return values;
  });
  std::vector<std::int32_t> tokens(15), targets(15);
  std::mt19937 random(3);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 37);
  for (auto& target : targets) target = static_cast<std::int32_t>(random() % 37);
  Outcome outcome;
  outcome.loss = model.forward(tokens, targets);
  if (dtype == DType::f32) outcome.logits = model.logits();
  outcome.backward_loss = model.backward(tokens, targets, 0.25f);
  model.for_each_param([&](const ParamSpec& param, std::size_t layer) {
    outcome.gradients[param.name] = model.gradient(param, layer);
    outcome.weights[param.name] = model.master(param, layer);
  });
  return outcome;
}

void expect_same_bits(const std::map<std::string, std::vector<float>>& got,
                      const std::map<std::string, std::vector<float>>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, values] : expected) {
    const std::vector<float>& other = got.at(name);
    ASSERT_EQ(other.size(), values.size()) << name;
    EXPECT_EQ(std::memcmp(other.data(), values.data(), values.size() * sizeof(float)), 0) << name;
  }
}

TEST(FrozenLayout, ForwardAndBackwardGiveTheSameBitsPerTensor) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Outcome expected = run(dtype, {});
    for (const std::vector<std::string>& frozen : subsets_of(names_of(make_layers(odd_spec())))) {
      const Outcome got = run(dtype, frozen);
      EXPECT_EQ(got.loss, expected.loss);
      EXPECT_EQ(got.backward_loss, expected.backward_loss);
      EXPECT_EQ(got.logits, expected.logits);
      expect_same_bits(got.gradients, expected.gradients);
      expect_same_bits(got.weights, expected.weights);
    }
  }
}

}  // namespace
}  // namespace spillway
