// The memory of the simulated devices: one reserved range of addresses, of which each is given out once. An access to
// freed memory or to the page behind an allocation faults; AddressSanitizer sees overruns to the byte.
// All functions expect the state's lock to be held, unless they say otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuda_sim {

struct DeviceAllocation {
  std::byte* begin;
  std::size_t bytes;
  int device;
};

// Filled with 0xff, aligned to 256 bytes. Null if no address is left.
std::byte* allocate_device(int device, std::size_t bytes);
void free_device(std::byte* begin);

bool in_device_space(const void* p);
// The live allocation that contains p, or null.
const DeviceAllocation* find_device(const void* p);

std::int64_t device_bytes_used(int device);

// Makes memory accessible or not, as the mode and the work that runs ask for.
void update_protection();

}  // namespace cuda_sim
