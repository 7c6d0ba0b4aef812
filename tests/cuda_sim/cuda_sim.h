// What tests may ask of and tell the simulated CUDA runtime. Environment variables set the same before the program's
// first call; README.md lists them.
#pragma once

#include <cstdint>

namespace cuda_sim {

#define CUDA_SIM_API __attribute__((visibility("default")))

enum class ThreadOrder { forward, reverse, shuffled };  // of a block's threads

enum class Driver {
  present,
  absent,     // every call fails with cudaErrorInsufficientDriver (35)
  stub,       // ... cudaErrorStubLibrary (34)
  no_device,  // ... cudaErrorNoDevice (100)
};

struct Settings {
  // Timing. Right programs are right in every combination.
  bool lazy = false;             // a stream runs only as far as somebody waits for it
  bool sync = false;             // each enqueue waits until its work has run (and orders nothing by that)
  bool protect = false;          // device memory is inaccessible while no work runs
  bool racecheck = false;        // under ThreadSanitizer, each CUDA thread is a thread of its own
  std::uint64_t delay_seed = 0;  // not 0: before each piece of work a stream sleeps 0 to max_delay_us
  int max_delay_us = 3000;
  ThreadOrder order = ThreadOrder::forward;
  std::uint64_t order_seed = 1;  // of shuffled

  // The machine.
  Driver driver = Driver::present;
  int driver_version = 13000;
  int devices = 1;                                // at most kMaxDevices
  std::int64_t memory_bytes = std::int64_t{1} << 30;  // a device's

  // Faults.
  std::int64_t fail_allocation_after = -1;  // cudaMalloc that would pass so many bytes fails, whatever cudaMemGetInfo says; -1: never
  std::int64_t fail_launch = 0;             // the so many-th launch from now faults on the device (1: the next); 0: none
  bool refuse_pinning = false;              // cudaHostRegister and cudaHostAlloc fail
  std::int64_t largest_pinning = -1;        // cudaHostRegister of more bytes than this fails; -1: of any number works
};

inline constexpr int kMaxDevices = 8;

struct Statistics {
  std::int64_t launches = 0;
  std::int64_t copies = 0;           // asynchronous copies and memsets
  std::int64_t pageable_copies = 0;  // of those, from or to host memory that is not pinned: they block the host
  std::int64_t host_functions = 0;
  std::int64_t allocations = 0;  // cudaMalloc and pinning
  // The host waited, or may have.
  std::int64_t stream_synchronisations = 0;
  std::int64_t event_synchronisations = 0;
  std::int64_t device_synchronisations = 0;
  std::int64_t frees = 0;    // cudaFree waits for the device
  std::int64_t queries = 0;  // of streams and events

  std::int64_t synchronisations() const {
    return stream_synchronisations + event_synchronisations + device_synchronisations + frees;
  }
};

CUDA_SIM_API Settings settings();
// Takes effect for what is enqueued from now on. `devices` only before the first call.
CUDA_SIM_API void set_settings(const Settings& settings);

CUDA_SIM_API Statistics statistics();
CUDA_SIM_API void reset_statistics();

// Waits for all streams, forgets the devices' errors and the calling thread's, goes back to the environment's settings
// and zero statistics. Memory, streams and events stay.
CUDA_SIM_API void reset();

}  // namespace cuda_sim
