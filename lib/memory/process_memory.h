// What the operating system says about memory: this process's and the machine's.
#pragma once

#include <cstdint>

namespace spillway {

// Resident bytes of this process now (VmRSS), and its highest so far (VmHWM).
std::int64_t resident_bytes();
std::int64_t peak_resident_bytes();

// Bytes this process may still take without swapping or being killed: the smaller of what the kernel calls
// available and what the memory cgroup leaves.
std::int64_t available_memory();

}  // namespace spillway
