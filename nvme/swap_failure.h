// What is said about a transfer that failed: the path, the extent, what happened as far as it can be found out, what to do.
// Both may read the header back from a disk that is about to fail, so they block.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "swap_state.h"
#include "transfer_list.h"

namespace spillway {

// Of a transfer whose `error` is set.
std::string transfer_failure(SwapState& state, const RingTransfer& transfer);

// Of a read extent whose bytes are not those written.
std::string checksum_failure(SwapState& state, const RingTransfer& transfer, const ExtentRecord& record, std::uint64_t found);

// Of a transfer that is not begun, because another has failed.
std::string not_begun(SwapState& state, int extent, IoOp op);

// "[nvme] read tile 12 of block 3 (/swap): reason"
std::string failure_text(SwapState& state, int extent, IoOp op, const std::string& reason);

}  // namespace spillway
