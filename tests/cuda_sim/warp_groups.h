// Lanes of warps that exchange values: who waits for whom, and the values until all have read them.
#pragma once

#include <cstddef>

#include "cuda_sim/simt.h"

namespace cuda_sim {

// One exchange. Open while lanes arrive; then the lanes read, and the last to go on frees it.
struct WarpGroup {
  unsigned mask;
  unsigned arrived;  // 0: free, unless there are readers
  int readers;
  const char* operation;
  Site site;  // of the first to arrive
  std::size_t bytes;
  unsigned char values[32 * kWarpValueBytes];
};

class WarpGroups {
 public:
  WarpGroups();
  ~WarpGroups();
  WarpGroups(const WarpGroups&) = delete;
  WarpGroups& operator=(const WarpGroups&) = delete;

  // The group that lane `lane` of `warp` joins, a new one if it is the first. Disagreement between lanes is a violation.
  WarpGroup& join(unsigned warp, unsigned lane, unsigned mask, std::size_t bytes, const char* operation, Site site);

  // An open group of the warp that still expects the lane, or null.
  const WarpGroup* expecting(unsigned warp, unsigned lane) const;

 private:
  // A lane waits in one group at most and reads of another.
  static constexpr unsigned kGroupsPerWarp = 64;
  static constexpr unsigned kWarps = 32;

  WarpGroup* groups_;  // [kWarps][kGroupsPerWarp]
};

}  // namespace cuda_sim
