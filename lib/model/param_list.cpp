// Where each parameter of a layer lies in its flat buffer.
#include <utility>

#include "model/layers.h"

namespace spillway {

void ParamList::add(std::int64_t& offset, std::string name, std::vector<std::int64_t> shape, ParamInit init, float stddev) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  params_.push_back({std::move(name), std::move(shape), 0, count, init, stddev});
  offsets_.push_back(&offset);
}

void ParamList::lay_out(const FrozenNames& frozen) {
  std::vector<ParamSpec> added = std::exchange(params_, {});
  params_.reserve(added.size());
  for (ParamSpec& param : added) param.trainable = !frozen.contains(param.name);
  for (const bool trainable : {true, false}) {
    for (std::size_t i = 0; i < added.size(); ++i) {
      if (added[i].trainable != trainable) continue;
      added[i].offset = *offsets_[i] = num_elements_;
      num_elements_ += added[i].num_elements;
      params_.push_back(std::move(added[i]));
    }
    if (trainable) trainable_elements_ = num_elements_;
  }
  offsets_.clear();
}

}  // namespace spillway
