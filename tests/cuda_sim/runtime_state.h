// What the simulated runtime knows: settings, devices, streams, events. Guarded by one lock that is never held while
// work runs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_sim/cuda_api.h"
#include "cuda_sim/cuda_sim.h"
#include "cuda_sim/raw_lock.h"
#include "cuda_sim/sanitizers.h"
#include "cuda_sim/stream_work.h"

namespace cuda_sim {

// A point in a stream's work, as one record of an event made it. Its address is the token of the edge it gives.
struct Completion {
  CUstream_st* stream = nullptr;
  std::uint64_t sequence = 0;
  bool done = false;
  std::int64_t time_ns = 0;
};

struct HostRange {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

struct Operation {
  const char* what;
  std::function<void()> run;                    // may be empty
  bool uses_device = true;                      // device memory is accessible meanwhile, and a failed device skips it
  HostRange pinned = {};                        // has to stay pinned until then
  std::shared_ptr<Completion> completion = {};  // of a record
  std::uint64_t sequence = 0;                   // set by push()
};

}  // namespace cuda_sim

// Never freed, so that a handle used after its end is told from others.
struct CUstream_st {
  int device = 0;
  int priority = 0;
  std::uint64_t delay_state = 0;
  std::deque<std::unique_ptr<cuda_sim::Operation>> queue;
  std::unique_ptr<cuda_sim::Operation> running;
  cuda_sim::Condition changed;  // work or permission came
  std::uint64_t enqueued = 0, completed = 0;
  std::uint64_t released = 0;  // in lazy mode, runs up to this one
  bool destroyed = false;
};

struct CUevent_st {
  int device = 0;
  bool timed = true;
  bool destroyed = false;
  std::shared_ptr<cuda_sim::Completion> last;  // null: never recorded
};

namespace cuda_sim {

struct State {
  RawLock lock;
  Condition progress;  // some work completed
  Settings settings;
  Statistics statistics;
  cudaError_t failed[kMaxDevices] = {};  // sticky
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::vector<std::unique_ptr<CUevent_st>> events;
};

// Made at the first use, never destroyed: stream threads outlive main().
State& state();

using StateLock = std::unique_lock<RawLock>;

// stream.cpp. All take the lock themselves.
CUstream_st& checked_stream(cudaStream_t stream, const char* call);
void start_thread(CUstream_st& stream);
// Returns at once except in sync mode.
void push(CUstream_st& stream, Operation operation);
std::shared_ptr<Completion> push_record(CUstream_st& stream);
void push_wait(CUstream_st& stream, std::shared_ptr<Completion> completion);
// Blocks; what came before the record comes before what follows.
void wait_for(Completion& completion);
void wait_for_device(int device);
bool in_host_function();
void run_host_function(cudaHostFn_t function, void* argument);

std::int64_t monotonic_ns();

// Error of the calling thread's last failed call; cudaSuccess and cudaErrorNotReady are not remembered.
cudaError_t remember(cudaError_t error);
void forget_error();

// An entry point: enter_call, then the body, whose bookkeeping no sanitizer sees.
template <class Body>
cudaError_t api_call(const char* name, Body body) {
  const cudaError_t error = enter_call(name);
  if (error != cudaSuccess) return remember(error);
  const Unseen unseen;
  return remember(body());
}

template <class Count>
void count(Count Statistics::*counter) {
  const StateLock lock(state().lock);
  ++(state().statistics.*counter);
}

}  // namespace cuda_sim
