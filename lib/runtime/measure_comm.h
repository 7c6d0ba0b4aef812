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
// slowest rank. All-gathers of two sizes, a few times each after a barrier; the median counts. The 16 MiB gathered are an
// arena of the device, which lives as long as that: give it one that will not be trained on. A group of one has
// nothing to measure: {0, 0}. Throws CommError, MemoryError.
CommRates measure_comm_rates(Communicator& ranks, Device& device);

}  // namespace spillway
