// cudaStream* and cudaLaunchHostFunc.
#include "cuda_sim/runtime_state.h"

using namespace cuda_sim;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return api_call("cudaStreamCreateWithPriority", [&] {
    if (stream == nullptr) return cudaErrorInvalidValue;
    if (flags != cudaStreamNonBlocking) violation("a stream that is ordered with the default stream; use cudaStreamNonBlocking");
    State& s = state();
    CUstream_st* made;
    {
      const StateLock lock(s.lock);
      made = s.streams.emplace_back(std::make_unique<CUstream_st>()).get();
      made->ordinal = static_cast<int>(s.streams.size());
      made->device = current_device();
      made->priority = priority;
    }
    start_thread(*made);
    *stream = made;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }

// What is enqueued still runs; nobody waits for it.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return api_call("cudaStreamDestroy", [&] {
    CUstream_st& target = checked_stream(stream, "cudaStreamDestroy");
    release_all();
    const StateLock lock(state().lock);
    target.destroyed = true;
    target.changed.notify_all();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return api_call("cudaStreamSynchronize", [&] {
    CUstream_st& target = checked_stream(stream, "cudaStreamSynchronize");
    count(&Statistics::stream_synchronisations);
    wait_for(*push_record(target));
    const StateLock lock(state().lock);
    return state().failed[target.device];
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return api_call("cudaStreamQuery", [&] {
    CUstream_st& target = checked_stream(stream, "cudaStreamQuery");
    count(&Statistics::queries);
    release_all();
    {
      const StateLock lock(state().lock);
      if (target.completed != target.enqueued) return cudaErrorNotReady;
    }
    wait_for(*push_record(target));  // for the edge
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return api_call("cudaStreamWaitEvent", [&] {
    CUstream_st& target = checked_stream(stream, "cudaStreamWaitEvent");
    std::shared_ptr<Completion> completion;
    {
      const StateLock lock(state().lock);
      if (event->destroyed) violation("cudaStreamWaitEvent for a destroyed event");
      if (event->last == nullptr) violation("cudaStreamWaitEvent for an event that was never recorded, which waits for nothing");
      completion = event->last;
    }
    push_wait(target, std::move(completion));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return api_call("cudaStreamGetPriority", [&] {
    *priority = checked_stream(stream, "cudaStreamGetPriority").priority;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return api_call("cudaStreamGetDevice", [&] {
    *device = checked_stream(stream, "cudaStreamGetDevice").device;
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return api_call("cudaLaunchHostFunc", [&] {
    CUstream_st& target = checked_stream(stream, "cudaLaunchHostFunc");
    if (function == nullptr) return cudaErrorInvalidValue;
    count(&Statistics::host_functions);
    // Device memory is out of its reach, but it is not called once the device has failed.
    push(target, {.what = "cudaLaunchHostFunc",
                  .run = [=, device = target.device] {
                    const auto failed = [device] {
                      const StateLock lock(state().lock);
                      return state().failed[device];
                    };
                    if (failed() == cudaSuccess) run_host_function(function, argument);
                  },
                  .uses_device = false});
    return cudaSuccess;
  });
}
}
