// What the operating system says about memory: this process's and the machine's.
#pragma once

#include <cstdint>

namespace spillway {

// Resident bytes of this process now (VmRSS), and its highest since the start or the last restart (VmHWM).
std::int64_t resident_bytes();
std::int64_t peak_resident_bytes();

// Lets peak_resident_bytes() begin anew from what is resident now. False if the kernel does not offer it
// (/proc/self/clear_refs): the peak then goes on counting from the start of the process.
bool restart_peak_resident();

// Bytes this process may still take without swapping or being killed: the smaller of what the kernel calls
// available and what the memory cgroup leaves.
std::int64_t available_memory();

}  // namespace spillway
