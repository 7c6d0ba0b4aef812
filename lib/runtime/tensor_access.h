// Reading and editing the weights and the optimizer's state of single parameters by name, wherever they live. Only while
// nothing runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/state_access.h"
#include "runtime/state_io.h"
#include "runtime/tensor_directory.h"

namespace spillway {

class TensorAccess {
 public:
  // Borrows everything; `links` is nullptr in a world of one.
  TensorAccess(const Plan& plan, const std::vector<std::unique_ptr<Layer>>& layers, StateAccess& state, RankLinks* links);

  // All of a parameter's section, in the order of its shape; a `weight` is as the next forward will see it, widened from
  // the dtype of the model. Each rank reads the part that it reduces gradients of, tile by tile, and gets the
  // others'. Throws what TensorDirectory::open() throws, and IoError. Collective.
  void read(std::string_view name, StateSection section, std::span<float> out);

  // Replaces all of a parameter's section; `values` are the same on all ranks. Any value is taken, infinities and NaN
  // too: it is the next step that will find them. `master` and `weight` of a trained parameter are two names for one
  // write: the master becomes these values, from which the next update starts, and the weights, wherever ranks keep
  // them, become the same values rounded to the dtype of the model, which the next forward sees. Moments are written
  // alone, and so is the weight of a frozen parameter. Throws as read() does; after an IoError the tensor may be
  // written in part. Collective.
  void write(std::string_view name, StateSection section, std::span<const float> values);

 private:
  NamedTensor open(std::string_view operation, std::string_view name, StateSection section, std::int64_t num_elements,
                   std::span<const float> values) const;
  void read_state(const NamedTensor& tensor, StateSection section, std::span<float> out);
  void read_weights(const NamedTensor& tensor, std::span<float> out);
  void write_tiles(const NamedTensor& tensor, StateSection section, std::span<const float> values);
  void write_chunks(const NamedTensor& tensor, std::span<const float> values);

  const Plan& plan_;
  StateAccess& state_;
  TensorDirectory directory_;
  std::vector<bool> is_of_tile_;  // by chunk of weights: a tile here is its master
};

}  // namespace spillway
