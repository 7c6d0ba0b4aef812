// Copies what this rank saves out of wherever it lives.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "runtime/plan_memory.h"
#include "runtime/state_io.h"
#include "spillway/device.h"
#include "spillway/model.h"
#include "spillway/swap_store.h"

namespace spillway {

class SnapshotReader {
 public:
  // Borrows everything; `store` may be nullptr if nothing is on NVMe.
  SnapshotReader(const Plan& plan, PlanMemory& memory, const std::vector<std::unique_ptr<Layer>>& layers, Device& device, SwapStore* store);

  // One per Plan::snapshots, in that order.
  std::span<const SnapshotItem> items() const { return items_; }

  // Fills `out`, which is page-aligned host memory of items()[item].bytes(), and blocks until that is done. What the
  // item consists of must not change meanwhile. One thread at a time.
  void read(std::size_t item, std::span<std::byte> out);

  // Into memory of the sink, and over to it.
  void copy_out(std::size_t item, SnapshotSink& sink);

 private:
  SnapshotItem describe(const SnapshotPlan& snapshot, const std::vector<std::unique_ptr<Layer>>& layers) const;
  void read_extent(int extent, std::byte* to);
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes);

  const Plan& plan_;
  PlanMemory& memory_;
  std::vector<SnapshotItem> items_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<SwapChannel> channel_;
};

}  // namespace spillway
