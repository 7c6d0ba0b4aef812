// Ranges of the calling thread for a profiler that understands NVTX, in the domain "spillway". Off, at the cost of a
// branch, unless such a tool has attached itself or SPILLWAY_NVTX=1.
#pragma once

#include <string_view>

namespace spillway::cuda {

// "operation object". Longer names than anybody needs are cut.
void push_range(std::string_view operation, std::string_view object);
// The last one pushed by this thread.
void pop_range();

}  // namespace spillway::cuda
