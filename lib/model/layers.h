// The concrete layers' factories and what they share: sizes derived from a spec, the list of a layer's
// parameters, and pointers into its flat buffer. Private to lib/model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "spillway/model.h"

namespace spillway {

using FrozenNames = std::unordered_set<std::string>;

std::unique_ptr<Layer> make_embedding_layer(const ModelSpec& spec, const FrozenNames& frozen);
std::unique_ptr<Layer> make_block_layer(const ModelSpec& spec, std::int64_t index, const FrozenNames& frozen);
// The token table begins at element `token_table` of the embedding's flat buffer.
std::unique_ptr<Layer> make_head_layer(const ModelSpec& spec, std::int64_t token_table, const FrozenNames& frozen);

// Layer 0 holds the token table, which the head is tied to.
inline constexpr int kEmbeddingLayer = 0;
inline constexpr std::string_view kTokenTable = "wte.weight";

// Hidden width of the MLP.
constexpr std::int64_t hidden_channels(const ModelSpec& spec) {
  return spec.mlp_channels > 0 ? spec.mlp_channels : 4 * spec.channels;
}

// A layer's parameters. First all are added, then they are laid out: without gaps, in the order added, but for the
// frozen ones, which follow the others.
class ParamList {
 public:
  // `offset` receives the parameter's first element in the flat buffer when lay_out() is called.
  void add(std::int64_t& offset, std::string name, std::vector<std::int64_t> shape, ParamInit init, float stddev = 0.0f);

  void lay_out(const FrozenNames& frozen);

  const std::vector<ParamSpec>& params() const { return params_; }  // in flat order
  std::int64_t num_elements() const { return num_elements_; }
  std::int64_t trainable_elements() const { return trainable_elements_; }

 private:
  std::vector<ParamSpec> params_;
  std::vector<std::int64_t*> offsets_;  // by order of addition; empty once laid out
  std::int64_t num_elements_ = 0;
  std::int64_t trainable_elements_ = 0;
};

// Element `offset` of a flat buffer of `dtype`.
inline const void* element(const void* base, std::int64_t offset, DType dtype) {
  return static_cast<const std::byte*>(base) + offset * size_of(dtype);
}

}  // namespace spillway
