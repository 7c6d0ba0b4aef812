// What a path of the NVMe tier moved, as JSON.
#pragma once

#include <string>

#include "spillway/swap_store.h"

namespace spillway {

// An object of the folder, bytes, busy time, rate, latencies, retries and checksum failures; with `facts`, also of how the
// path is read and written, which does not change during a run.
std::string to_text(const SwapPathHealth& path, bool facts);

}  // namespace spillway
