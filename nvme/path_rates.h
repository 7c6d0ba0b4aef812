// How much of the extents a path gets and how many requests it keeps in flight, where the caller leaves that to be measured.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spillway/swap_store.h"
#include "swap_file.h"

namespace spillway {

struct PathRate {
  double bandwidth = 1.0;  // relative to the others'
  int depth = 1;           // of each ring
};

// For each path of the options, whose files these are, by disk_rates(). Where those cannot be measured (no room for the scratch
// file), a warning says so and which values stand in. Blocks while it measures.
std::vector<PathRate> path_rates(const SwapStoreOptions& options, std::span<const SwapFile> files);

}  // namespace spillway
