// The way of a layer's gradient from backward to the buffer that the optimizer reads: over ranks, micro-batches and
// the link.
#pragma once

#include <vector>

#include "plan/gradient_stream.h"
#include "plan/ranks.h"

namespace spillway {

class GradientLowering {
 public:
  // `statistics`: the device's losses and square sums. Borrows the plan and the timeline.
  GradientLowering(Plan& plan, Timeline& timeline, int statistics);

  void start_micro_batch();

  // The f32 buffer into which backward of this micro-batch writes the gradient of layer l, whole.
  int gradient_of(std::size_t l, int micro_batch);
  bool has_gradient(std::size_t l) const { return gradients_[l] >= 0; }

  // Backward of the layer stands at position u; its gradient of the micro-batch is complete.
  void after_backward(std::size_t u, int l, int micro_batch);

  // After the last backward.
  void finish() { stream_.flush(); }

 private:
  const LayerPlan& layer(int l) const { return plan_.layers[static_cast<std::size_t>(l)]; }
  bool is_last(int m) const { return m == request_.accumulation_steps - 1; }

  int reduce(std::size_t u, int l, int micro_batch, int gradient, int into);
  Task pack(int l, int micro_batch, int gradient, const GradientBucket& bucket, int send, CollectivePlan& collective);
  void accumulate_on_host(std::size_t u, int l, int micro_batch, int values);
  void finalize(std::size_t u, int l, int accumulated);

  Plan& plan_;
  const PlanRequest& request_;
  Timeline& timeline_;
  int statistics_;
  GradientStream stream_;          // to NVMe
  std::vector<int> gradients_;     // per layer: f32 gradient of this micro-batch
  std::vector<int> accumulators_;  // per layer: f32, device or host: the whole layer, or this rank's slice
};

}  // namespace spillway
