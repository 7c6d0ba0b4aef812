#include "runtime/gradient_access.h"

#include <algorithm>

#include "base/values.h"
#include "spillway/ops.h"

namespace spillway {

GradientAccess::GradientAccess(const Plan& plan, FinishedGradients& gradients, const TensorDirectory& directory, double factor,
                               std::span<double> square_sums)
    : plan_(plan), gradients_(gradients), directory_(directory), factor_(factor), square_sums_(square_sums) {}

double* GradientAccess::sums_of(int layer) const {
  std::int64_t first = 0;
  for (int l = 0; l < layer; ++l) first += norm_pieces(plan_.layers[static_cast<std::size_t>(l)].slice.size());
  return square_sums_.data() + first;
}

// At most a piece.
void GradientAccess::load(const LayerPlan& layer, ElementRange range, std::span<float> out) {
  widen(layer.gradient_dtype, gradients_.read(layer, range), out);
}

void GradientAccess::read(std::string_view name, std::span<float> out) {
  const NamedTensor tensor = directory_.open({"read", "gradient", name, true, static_cast<std::int64_t>(out.size()), {}});
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(tensor.layer)];
  const ElementRange mine = directory_.provided(tensor);
  for (std::int64_t begin = mine.begin; begin < mine.end; begin += kNormPiece) {
    const ElementRange piece{begin, std::min(begin + kNormPiece, mine.end)};
    const std::span<float> values = out.subspan(static_cast<std::size_t>(begin - tensor.param->offset), static_cast<std::size_t>(piece.size()));
    load(layer, piece, values);
    for (float& value : values) value = static_cast<float>(value / factor_);
  }
  directory_.share(tensor, out);
}

void GradientAccess::write(std::string_view name, std::span<const float> values) {
  const NamedTensor tensor = directory_.open({"write", "gradient", name, true, static_cast<std::int64_t>(values.size()), values});
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(tensor.layer)];
  edited_ = true;
  replace(layer, layer.slice, tensor, values, sums_of(tensor.layer));
  if (layer.square_sums_on_host) return;
  // What replicas of this shard count in their sums, and this rank only updates with.
  replace(layer, {layer.owned.begin, layer.slice.begin}, tensor, values, nullptr);
  replace(layer, {layer.slice.end, layer.owned.end}, tensor, values, nullptr);
}

// Puts the part of the tensor that lies in the stretch there, piece by piece as square sums are taken, with the kernel that
// has finished the gradient: whoever reads it finds bits as if backward had left these values.
void GradientAccess::replace(const LayerPlan& layer, ElementRange stretch, const NamedTensor& tensor, std::span<const float> values,
                             double* square_sums) {
  alignas(64) float piece_values[kNormPiece];
  for (std::int64_t begin = stretch.begin; begin < stretch.end; begin += kNormPiece) {
    const ElementRange piece{begin, std::min(begin + kNormPiece, stretch.end)};
    const ElementRange changed = overlap(piece, tensor.range());
    if (changed.empty()) continue;
    load(layer, piece, {piece_values, static_cast<std::size_t>(piece.size())});
    for (std::int64_t e = changed.begin; e < changed.end; ++e) {
      piece_values[e - begin] = static_cast<float>(values[static_cast<std::size_t>(e - tensor.param->offset)] * factor_);
    }
    double unused = 0.0;
    double* sum = square_sums == nullptr ? &unused : square_sums + (begin - stretch.begin) / kNormPiece;
    finalize_gradient_on_host({piece_values, gradients_.piece().data(), sum, plan_.request.wire, layer.gradient_dtype, piece.size()});
    gradients_.write(layer, piece);
  }
}

}  // namespace spillway
