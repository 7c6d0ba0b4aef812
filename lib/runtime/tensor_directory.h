// Tensors by name: where they are in the model, which rank provides which part of one, and how all ranks get the whole.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/rank_links.h"
#include "spillway/model.h"
#include "spillway/plan.h"

namespace spillway {

struct NamedTensor {
  int layer;
  const ParamSpec* param;

  // Its elements in the flat buffer of the layer.
  ElementRange range() const { return {param->offset, param->offset + param->num_elements}; }
};

// What is asked for. `values`: what is to be written; when reading, none.
struct TensorRequest {
  std::string_view operation;  // "read", "write"
  std::string_view kind;       // "master", ..., "gradient"
  std::string_view name;
  bool trained_only;           // frozen parameters have no such tensor
  std::int64_t num_elements;   // that the caller has memory for
  std::span<const float> values;
};

// Elements that both ranges have; empty if there are none.
ElementRange overlap(ElementRange a, ElementRange b);

class TensorDirectory {
 public:
  // Borrows everything; `links` is nullptr in a world of one. Cheap: looks nothing up.
  TensorDirectory(const Plan& plan, const std::vector<std::unique_ptr<Layer>>& layers, RankLinks* links)
      : plan_(plan), layers_(layers), links_(links) {}

  // The tensor asked for. Throws CommError when ranks ask for different things or would write different values, and
  // ConfigError for an unknown name, a size that is not the tensor's, and a tensor that a frozen parameter does not
  // have; on all ranks alike. Collective.
  NamedTensor open(const TensorRequest& request) const;

  // The part of a tensor that this rank provides, in elements of the layer: every element is some rank's, and no two
  // ranks'. What a rank provides, it has.
  ElementRange provided(const NamedTensor& tensor) const { return provided(tensor, plan_.request.rank); }

  // `out` holds what this rank provides of the tensor; afterwards it holds all of it. Takes 1 MiB of memory in a world of
  // up to 2^17 ranks. Collective.
  void share(const NamedTensor& tensor, std::span<float> out) const;

 private:
  NamedTensor find(const TensorRequest& request) const;
  ElementRange provided(const NamedTensor& tensor, int rank) const;
  void agree(const TensorRequest& request) const;

  const Plan& plan_;
  const std::vector<std::unique_ptr<Layer>>& layers_;
  RankLinks* links_;
};

}  // namespace spillway
