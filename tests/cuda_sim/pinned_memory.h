// Host memory that the simulated devices may copy from and to. All functions expect the state's lock to be held.
#pragma once

#include <cstddef>

namespace cuda_sim {

// False if a part is pinned already.
bool pin(const void* p, std::size_t bytes);
// How many bytes were pinned at exactly p; 0 if none.
std::size_t pinned_at(const void* p);
bool is_pinned(const void* p, std::size_t bytes);
// Work that needs the memory and has not run is a violation.
void unpin(const void* p, const char* call);

}  // namespace cuda_sim
