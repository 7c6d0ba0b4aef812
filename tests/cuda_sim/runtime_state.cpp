#include "cuda_sim/runtime_state.h"

#include <time.h>

#include "cuda_sim/block_runner.h"
#include "cuda_sim/environment.h"

namespace cuda_sim {

State& state() {
  static State* const instance = [] {
    const Unseen unseen;
    auto* made = new State;
    made->settings = settings_of_environment();
    return made;
  }();
  return *instance;
}

std::int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

cudaError_t enter_call(const char* name) {
  if (BlockRunner::in_kernel()) violation("%s called in a kernel", name);
  if (in_host_function()) violation("%s called in a host function, where CUDA calls may deadlock", name);
  State& s = state();
  const StateLock lock(s.lock);
  switch (s.settings.driver) {
    case Driver::absent: return cudaErrorInsufficientDriver;
    case Driver::stub: return cudaErrorStubLibrary;
    case Driver::no_device: return cudaErrorNoDevice;
    case Driver::present: break;
  }
  // Any driver of the toolkit's major version serves it.
  if (s.settings.driver_version / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
  return s.failed[current_device()];
}

Settings settings() {
  const StateLock lock(state().lock);
  return state().settings;
}

void set_settings(const Settings& settings) {
  State& s = state();
  const StateLock lock(s.lock);
  if (settings.devices < 1 || settings.devices > kMaxDevices) {
    violation("%d simulated devices; there can be 1 to %d", settings.devices, kMaxDevices);
  }
  s.settings = settings;
  // Leaving the lazy mode.
  for (const std::unique_ptr<CUstream_st>& stream : s.streams) stream->changed.notify_all();
}

Statistics statistics() {
  const StateLock lock(state().lock);
  return state().statistics;
}

void reset_statistics() {
  const StateLock lock(state().lock);
  state().statistics = {};
}

void reset() {
  const Unseen unseen;
  for (int device = 0; device < kMaxDevices; ++device) wait_for_device(device);
  set_settings(settings_of_environment());
  reset_statistics();
  const StateLock lock(state().lock);
  for (cudaError_t& error : state().failed) error = cudaSuccess;
  forget_error();
}

}  // namespace cuda_sim
