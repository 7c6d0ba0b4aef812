// cudaEvent*.
#include "cuda_sim/runtime_state.h"

using namespace cuda_sim;

namespace {

CUevent_st& checked_event(cudaEvent_t event, const char* call) {
  if (event == nullptr) violation("%s of a null event", call);
  const StateLock lock(state().lock);
  if (event->destroyed) violation("%s of a destroyed event", call);
  return *event;
}

}  // namespace

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return api_call("cudaEventCreateWithFlags", [&] {
    if (event == nullptr) return cudaErrorInvalidValue;
    State& s = state();
    const StateLock lock(s.lock);
    *event = s.events.emplace_back(std::make_unique<CUevent_st>()).get();
    (*event)->device = current_device();
    (*event)->timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return api_call("cudaEventDestroy", [&] {
    CUevent_st& target = checked_event(event, "cudaEventDestroy");
    const StateLock lock(state().lock);
    target.destroyed = true;
    target.last = nullptr;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return api_call("cudaEventRecord", [&] {
    CUevent_st& target = checked_event(event, "cudaEventRecord");
    CUstream_st& on = checked_stream(stream, "cudaEventRecord");
    if (on.device != target.device) return cudaErrorInvalidResourceHandle;
    std::shared_ptr<Completion> completion = push_record(on);
    const StateLock lock(state().lock);
    target.last = std::move(completion);
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return api_call("cudaEventSynchronize", [&] {
    CUevent_st& target = checked_event(event, "cudaEventSynchronize");
    count(&Statistics::event_synchronisations);
    std::shared_ptr<Completion> completion;
    {
      const StateLock lock(state().lock);
      completion = target.last;
    }
    if (completion != nullptr) wait_for(*completion);
    const StateLock lock(state().lock);
    return state().failed[target.device];
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return api_call("cudaEventQuery", [&] {
    CUevent_st& target = checked_event(event, "cudaEventQuery");
    count(&Statistics::queries);
    release_all();
    std::shared_ptr<Completion> completion;
    {
      const StateLock lock(state().lock);
      completion = target.last;
      if (completion == nullptr) return cudaSuccess;
      if (!completion->done) return cudaErrorNotReady;
    }
    tsan_acquire(completion.get());
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return api_call("cudaEventElapsedTime", [&] {
    const CUevent_st& from = checked_event(start, "cudaEventElapsedTime");
    const CUevent_st& to = checked_event(end, "cudaEventElapsedTime");
    const StateLock lock(state().lock);
    if (!from.timed || !to.timed || from.last == nullptr || to.last == nullptr) return cudaErrorInvalidResourceHandle;
    if (!from.last->done || !to.last->done) return cudaErrorNotReady;
    *ms = static_cast<float>(to.last->time_ns - from.last->time_ns) * 1e-6f;
    return cudaSuccess;
  });
}
}
