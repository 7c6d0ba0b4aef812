// A model as the ordered list of its layers.
#include "model/layers.h"

namespace spillway {

std::vector<std::unique_ptr<Layer>> make_layers(const ModelSpec& spec) {
  validate(spec);
  std::vector<std::unique_ptr<Layer>> layers;
  layers.reserve(static_cast<std::size_t>(spec.layers) + 2);
  layers.push_back(make_embedding_layer(spec));
  for (std::int64_t index = 0; index < spec.layers; ++index) layers.push_back(make_block_layer(spec, index));
  layers.push_back(make_head_layer(spec));
  return layers;
}

}  // namespace spillway
