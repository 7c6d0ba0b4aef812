// A model as the ordered list of its layers.
#include <algorithm>

#include <fmt/format.h>

#include "model/frozen.h"
#include "model/layers.h"
#include "spillway/error.h"

namespace spillway {

namespace {

using Layers = std::vector<std::unique_ptr<Layer>>;

Layers build(const ModelSpec& spec, const FrozenNames& frozen) {
  Layers layers;
  layers.reserve(static_cast<std::size_t>(spec.layers) + 2);
  layers.push_back(make_embedding_layer(spec, frozen));
  for (std::int64_t index = 0; index < spec.layers; ++index) layers.push_back(make_block_layer(spec, index, frozen));
  const auto embedding = layers[kEmbeddingLayer]->params();
  const auto token_table = std::ranges::find(embedding, kTokenTable, &ParamSpec::name);
  layers.push_back(make_head_layer(spec, token_table->offset, frozen));
  return layers;
}

std::vector<std::string> parameter_names(const Layers& layers) {
  std::vector<std::string> names;
  for (const auto& layer : layers) {
    for (const ParamSpec& param : layer->params()) names.push_back(param.name);
  }
  return names;
}

}  // namespace

Layers make_layers(const ModelSpec& spec) { return make_layers(spec, {}); }

Layers make_layers(const ModelSpec& spec, std::span<const std::string> frozen_patterns) {
  validate(spec);
  Layers trained = build(spec, {});
  if (frozen_patterns.empty()) return trained;
  const std::vector<std::string> names = parameter_names(trained);
  const std::vector<bool> matched = match_frozen(frozen_patterns, names);
  FrozenNames frozen;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (matched[i]) frozen.insert(names[i]);
  }
  if (frozen.size() == names.size()) {
    throw ConfigError(fmt::format("spillway.frozen: all {} parameters of model \"{}\" match; nothing is left to train: leave at "
                                  "least one out", names.size(), spec.name));
  }
  return build(spec, frozen);
}

}  // namespace spillway
