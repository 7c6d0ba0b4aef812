// The finished gradients of this rank at the gate of a step, wherever they wait: on the device, on the host, or on NVMe,
// of which one tile is here at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/extent_index.h"
#include "runtime/plan_memory.h"
#include "spillway/device.h"
#include "spillway/ops.h"
#include "spillway/plan.h"
#include "spillway/swap_store.h"

namespace spillway {

class FinishedGradients {
 public:
  // Borrows everything; `store` may be nullptr if nothing is on NVMe.
  FinishedGradients(const Plan& plan, PlanMemory& memory, Device& device, SwapStore* store, const ExtentIndex& extents);

  // Memory for a piece of a gradient, as stored.
  std::span<std::byte> piece() const { return {memory_.at(plan_.gradient_piece_buffer), kNormPiece * sizeof(float)}; }

  // Elements of the layer, at most kNormPiece, that this rank has: from where they wait to piece(), of which the result is
  // what they take; or from there back.
  std::span<const std::byte> read(const LayerPlan& layer, ElementRange elements);
  void write(const LayerPlan& layer, ElementRange elements);

  // Back to NVMe with what was written. What was here is forgotten: the next step makes it anew.
  void settle();

 private:
  enum class Direction { here, back };
  void move(const LayerPlan& layer, ElementRange elements, Direction direction);
  void move_tiles(const LayerPlan& layer, ElementRange elements, Direction direction);
  void hold(int tile);
  int extent_of(int tile) const;
  void finish_transfer();

  const Plan& plan_;
  PlanMemory& memory_;
  const ExtentIndex& extents_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<SwapChannel> channel_;  // nullptr if no gradient is on NVMe
  int held_ = -1;                         // tile in gradient_tile_buffer
  bool changed_ = false;                  // since it was read
};

}  // namespace spillway
