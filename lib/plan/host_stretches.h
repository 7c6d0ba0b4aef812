// Which parts of the host arena the host's own passes work through from end to end.
#pragma once

#include <vector>

#include "spillway/byte_range.h"
#include "spillway/plan.h"

namespace spillway {

// For every tile that the cpu lane updates: each section of its state, its gradient and its new weights, as bytes of the
// host arena, each stretch once. One parallel pass takes each of them in the same proportions, so that is how they are
// laid over NUMA nodes.
std::vector<ByteRange> host_stretches(const Plan& plan);

}  // namespace spillway
