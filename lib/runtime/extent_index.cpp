#include "runtime/extent_index.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace spillway {

ExtentIndex::ExtentIndex(const Plan& plan) : plan_(plan), first_(plan.buffers.size() + 1, 0), order_(plan.extents.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  const auto extent = [&](int e) -> const ExtentPlan& { return plan.extents[static_cast<std::size_t>(e)]; };
  std::sort(order_.begin(), order_.end(), [&](int a, int b) { return std::tuple(extent(a).buffer, extent(a).begin) < std::tuple(extent(b).buffer, extent(b).begin); });
  for (const ExtentPlan& e : plan.extents) ++first_[static_cast<std::size_t>(e.buffer) + 1];
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
}

std::span<const int> ExtentIndex::within(const Access& access) const {
  const auto buffer = static_cast<std::size_t>(access.buffer);
  const std::span<const int> all(order_.data() + first_[buffer], first_[buffer + 1] - first_[buffer]);
  const auto begin_of = [&](int e) { return plan_.extents[static_cast<std::size_t>(e)].begin; };
  const auto end_of = [&](int e) { return begin_of(e) + plan_.extents[static_cast<std::size_t>(e)].bytes; };
  const auto first = std::partition_point(all.begin(), all.end(), [&](int e) { return begin_of(e) < access.begin; });
  const auto last = std::partition_point(first, all.end(), [&](int e) { return end_of(e) <= access.end; });
  return {first, last};
}

}  // namespace spillway
