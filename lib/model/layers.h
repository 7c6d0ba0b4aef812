// The concrete layers' factories and what they share: sizes derived from a spec, the list of a layer's
// parameters, and pointers into its flat buffer. Private to lib/model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "spillway/model.h"

namespace spillway {

std::unique_ptr<Layer> make_embedding_layer(const ModelSpec& spec);
std::unique_ptr<Layer> make_block_layer(const ModelSpec& spec, std::int64_t index);
std::unique_ptr<Layer> make_head_layer(const ModelSpec& spec);

// Layer 0 holds the token table first, and the head is tied to it there.
inline constexpr int kEmbeddingLayer = 0;
inline constexpr std::int64_t kTokenTableOffset = 0;

// Hidden width of the MLP.
constexpr std::int64_t hidden_channels(const ModelSpec& spec) {
  return spec.mlp_channels > 0 ? spec.mlp_channels : 4 * spec.channels;
}

// Collects a layer's parameters in flat order, without gaps.
class ParamList {
 public:
  // Appends a parameter and returns its offset.
  std::int64_t add(std::string name, std::vector<std::int64_t> shape, ParamInit init, float stddev = 0.0f) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    const std::int64_t offset = num_elements_;
    params_.push_back({std::move(name), std::move(shape), offset, count, init, stddev});
    num_elements_ += count;
    return offset;
  }

  const std::vector<ParamSpec>& params() const { return params_; }
  std::int64_t num_elements() const { return num_elements_; }

 private:
  std::vector<ParamSpec> params_;
  std::int64_t num_elements_ = 0;
};

// Element `offset` of a flat buffer of `dtype`.
inline const void* element(const void* base, std::int64_t offset, DType dtype) {
  return static_cast<const std::byte*>(base) + offset * size_of(dtype);
}

}  // namespace spillway
