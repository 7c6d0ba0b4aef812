#include "runtime/tensor_directory.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"
#include "base/text.h"
#include "plan/ranks.h"
#include "spillway/error.h"

namespace spillway {

namespace {

// Values of all ranks together that are exchanged at a time.
constexpr std::int64_t kSharedElements = 128 * 1024;

std::string attempt_of(const TensorRequest& request) { return fmt::format("{} the {} of \"{}\"", request.operation, request.kind, request.name); }

}  // namespace

ElementRange overlap(ElementRange a, ElementRange b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

NamedTensor TensorDirectory::find(const TensorRequest& request) const {
  std::vector<std::string_view> names;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    for (const ParamSpec& param : layers_[l]->params()) {
      if (param.name == request.name) return {static_cast<int>(l), &param};
      names.push_back(param.name);
    }
  }
  throw ConfigError(fmt::format("[tensor] {}: the model has no such parameter{}; use one of its {} names", attempt_of(request),
                                did_you_mean(request.name, names), names.size()));
}

// A divergence would be a hang, or weights that differ from rank to rank: it is found before.
void TensorDirectory::agree(const TensorRequest& request) const {
  if (links_ == nullptr) return;
  Hasher hasher;
  for (const std::string_view text : {request.operation, request.kind, request.name}) hasher.add(text);
  hasher.add(request.num_elements);
  hasher.add(std::as_bytes(request.values));
  const std::uint64_t mine = hasher.value();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(plan_.request.world_size));
  links_->control().exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<std::size_t> others;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] != mine) others.push_back(r);
  }
  if (others.empty()) return;
  throw CommError(fmt::format("[tensor] {} on rank {}: rank {} asked for something else, or has other values; all ranks have to make the same "
                              "call, with the same values",
                              attempt_of(request), plan_.request.rank, fmt::join(others, ", ")));
}

NamedTensor TensorDirectory::open(const TensorRequest& request) const {
  agree(request);
  const NamedTensor tensor = find(request);
  const ParamSpec& param = *tensor.param;
  if (!param.trainable && request.trained_only) {
    throw ConfigError(fmt::format("[tensor] {}: the parameter is frozen, it has only a weight", attempt_of(request)));
  }
  if (request.num_elements != param.num_elements) {
    throw ConfigError(fmt::format("[tensor] {}: found {} values, expected {}, the shape being ({})", attempt_of(request), request.num_elements,
                                  param.num_elements, fmt::join(param.shape, ", ")));
  }
  return tensor;
}

// As gradients are reduced: a slice a rank. Of a frozen part, which is not reduced, in the same proportions.
ElementRange TensorDirectory::provided(const NamedTensor& tensor, int rank) const {
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(tensor.layer)];
  const Partition ranks = partition_of(plan_.request);
  if (tensor.param->trainable) return overlap(tensor.range(), ranks.slice(layer.num_trainable, rank));
  const ElementRange frozen = ranks.slice(layer.num_elements - layer.num_trainable, rank);
  return overlap(tensor.range(), {layer.num_trainable + frozen.begin, layer.num_trainable + frozen.end});
}

void TensorDirectory::share(const NamedTensor& tensor, std::span<float> out) const {
  if (links_ == nullptr) return;
  const int world = plan_.request.world_size;
  std::int64_t longest = 0;
  for (int r = 0; r < world; ++r) longest = std::max(longest, provided(tensor, r).size());
  const std::int64_t piece = std::min(longest, std::max<std::int64_t>(1, kSharedElements / world));
  std::vector<float> mine(static_cast<std::size_t>(piece)), all(static_cast<std::size_t>(piece * world));
  // The values of a rank's part that are in this round, in `out`.
  const auto part_of = [&](int rank, std::int64_t round) {
    const ElementRange part = provided(tensor, rank);
    const std::int64_t begin = std::min(part.size(), round * piece), end = std::min(part.size(), begin + piece);
    return out.subspan(static_cast<std::size_t>(part.begin - tensor.param->offset + begin), static_cast<std::size_t>(end - begin));
  };
  for (std::int64_t round = 0; round < ceil_div(longest, piece); ++round) {
    std::ranges::copy(part_of(plan_.request.rank, round), mine.begin());
    links_->control().exchange(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    for (int r = 0; r < world; ++r) {
      const std::span<float> part = part_of(r, round);
      std::copy_n(all.begin() + r * piece, part.size(), part.begin());
    }
  }
}

}  // namespace spillway
