// Reading and editing the gradients of single parameters by name, wherever they are, between backward and update.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/finished_gradients.h"
#include "runtime/tensor_directory.h"
#include "spillway/plan.h"

namespace spillway {

class GradientAccess {
 public:
  // For the time of a step's gate, when its gradients are finished. `factor`: what the mean gradient was multiplied with.
  // `square_sums` of this rank's slices of all layers in order, kept up to date. Borrows everything but the directory.
  GradientAccess(const Plan& plan, FinishedGradients& gradients, const TensorDirectory& directory, double factor,
                 std::span<double> square_sums);

  // The gradient of the step's mean loss, without loss scale and before clipping; of all ranks, as rounded to the wire dtype.
  // Throws what TensorDirectory::open() throws. Collective.
  void read(std::string_view name, std::span<float> out);

  // Replaces it: `values`, the same on all ranks, are scaled as the others are and rounded to the wire dtype, and norm,
  // clipping and the verdict on overflow are of what is there then: a value that is not finite, or not after
  // scaling and rounding, skips the step. Throws as read() does. Collective.
  void write(std::string_view name, std::span<const float> values);

  // Whether anything was written.
  bool edited() const { return edited_; }

 private:
  void load(const LayerPlan& layer, ElementRange range, std::span<float> out);
  void replace(const LayerPlan& layer, ElementRange stretch, const NamedTensor& tensor, std::span<const float> values, double* square_sums);
  double* sums_of(int layer) const;

  const Plan& plan_;
  FinishedGradients& gradients_;
  TensorDirectory directory_;
  double factor_;
  std::span<double> square_sums_;
  bool edited_ = false;
};

}  // namespace spillway
