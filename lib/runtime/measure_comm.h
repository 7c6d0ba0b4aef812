// The rates of collectives, measured over the ranks that will use them.
#pragma once

#include "spillway/communicator.h"
#include "spillway/device.h"

namespace spillway {

struct CommRates {
  double bytes_per_s;  // that a rank receives in a large all-gather
  double latency_s;    // of a small one
};

// Collective: every rank of the group calls it with a device of its own, and all get the same answer, that of the
// slowest rank. All-gathers of two sizes over memory taken from the device's pinned arena, a few times each after a
// barrier; the median counts. A group of one has nothing to measure: {0, 0}. Takes well under a second on any link
// worth using. Throws CommError, MemoryError.
CommRates measure_comm_rates(Communicator& ranks, Device& device);

}  // namespace spillway
