// Which extents of the swap file a range of a buffer consists of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spillway/plan.h"

namespace spillway {

class ExtentIndex {
 public:
  // Borrows the plan.
  explicit ExtentIndex(const Plan& plan);

  // Those that lie within the access, in the buffer's order: indices into Plan::extents. Valid as long as the index.
  std::span<const int> within(const Access& access) const;

 private:
  const Plan& plan_;
  std::vector<std::size_t> first_;  // per buffer, into order_; one more at the end
  std::vector<int> order_;          // extents by buffer and place
};

}  // namespace spillway
