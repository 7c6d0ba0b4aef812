// Streams are threads. ThreadSanitizer sees an edge from an enqueue to its work and from a record to whoever waits for
// it, and nothing else.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cuda_sim/block_runner.h"
#include "cuda_sim/runtime_state.h"

namespace cuda_sim {

namespace {

constinit thread_local bool calling_host_function = false;

// The next operation that may run; null when the stream has been destroyed and is empty.
Operation* take(CUstream_st& stream) {
  State& s = state();
  StateLock lock(s.lock);
  for (;;) {
    if (stream.queue.empty()) {
      if (stream.destroyed) return nullptr;
    } else if (!s.settings.lazy || stream.queue.front()->sequence <= stream.released) {
      break;
    }
    stream.changed.wait(lock);
  }
  stream.running = std::move(stream.queue.front());
  stream.queue.pop_front();
  return stream.running.get();
}

void delay(CUstream_st& stream) {
  const Settings now = settings();
  if (now.delay_seed == 0) return;
  if (stream.delay_state == 0) stream.delay_state = now.delay_seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(stream.ordinal);
  stream.delay_state = stream.delay_state * 6364136223846793005u + 1442695040888963407u;
  usleep(static_cast<useconds_t>((stream.delay_state >> 33) % (static_cast<std::uint64_t>(now.max_delay_us) + 1)));
}

bool has_failed(int device) {
  const StateLock lock(state().lock);
  return state().failed[device] != cudaSuccess;
}

void run(Operation& operation, const CUstream_st& stream) {
  if (!operation.uses_device) {
    if (operation.run) operation.run();
  } else if (!has_failed(stream.device)) {
    const DeviceAccess access;
    operation.run();
  }
  if (operation.completion) tsan_release(operation.completion.get());
}

void complete(CUstream_st& stream) {
  const StateLock lock(state().lock);
  const std::unique_ptr<Operation> ended = std::move(stream.running);
  stream.completed = ended->sequence;
  if (ended->completion) {
    ended->completion->time_ns = monotonic_ns();
    ended->completion->done = true;
  }
  state().progress.notify_all();
}

void* run_stream(void* argument) {
  CUstream_st& stream = *static_cast<CUstream_st*>(argument);
  pthread_setname_np(pthread_self(), ("stream " + std::to_string(stream.ordinal)).c_str());
  for (;;) {
    Operation* operation;
    {
      const Unseen unseen;
      operation = take(stream);
    }
    if (operation == nullptr) break;
    tsan_acquire(operation);
    delay(stream);
    run(*operation, stream);
    const Unseen unseen;
    complete(stream);
  }
  BlockRunner::end_of_thread();
  return nullptr;
}

void release(CUstream_st& stream, std::uint64_t sequence) {
  stream.released = std::max(stream.released, sequence);
  stream.changed.notify_all();
}

}  // namespace

CUstream_st& checked_stream(cudaStream_t stream, const char* call) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    violation("%s on a default stream, which orders more than it says; create a stream", call);
  }
  State& s = state();
  const StateLock lock(s.lock);
  for (const std::unique_ptr<CUstream_st>& known : s.streams) {
    if (known.get() != stream) continue;
    if (stream->destroyed) violation("%s on a destroyed stream", call);
    return *stream;
  }
  violation("%s on %p, which is no stream", call, static_cast<void*>(stream));
}

void start_thread(CUstream_st& stream) {
  pthread_t thread;
  if (pthread_create(&thread, nullptr, run_stream, &stream) != 0) violation("no thread for a stream");
  // Joining would be an edge that destroying a stream does not have.
  pthread_detach(thread);
}

void push(CUstream_st& stream, Operation work) {
  auto operation = std::make_unique<Operation>(std::move(work));
  tsan_release(operation.get());
  State& s = state();
  StateLock lock(s.lock);
  const std::uint64_t sequence = operation->sequence = ++stream.enqueued;
  if (operation->completion) operation->completion->sequence = sequence;
  stream.queue.push_back(std::move(operation));
  stream.changed.notify_all();
  if (!s.settings.sync) return;
  release(stream, sequence);
  while (stream.completed < sequence) s.progress.wait(lock);
}

std::shared_ptr<Completion> push_record(CUstream_st& stream) {
  auto completion = std::make_shared<Completion>();
  completion->stream = &stream;
  push(stream, {.what = "record an event", .run = {}, .uses_device = false, .completion = completion});
  return completion;
}

void push_wait(CUstream_st& stream, std::shared_ptr<Completion> completion) {
  push(stream, {.what = "wait for an event", .run = [completion = std::move(completion)] { wait_for(*completion); }, .uses_device = false});
}

void wait_for(Completion& completion) {
  State& s = state();
  StateLock lock(s.lock);
  release(*completion.stream, completion.sequence);
  while (!completion.done) s.progress.wait(lock);
  lock.unlock();
  tsan_acquire(&completion);
}

void wait_for_device(int device) {
  std::vector<CUstream_st*> streams;
  {
    const StateLock lock(state().lock);
    for (const std::unique_ptr<CUstream_st>& stream : state().streams) {
      if (stream->device == device && !stream->destroyed) streams.push_back(stream.get());
    }
  }
  std::vector<std::shared_ptr<Completion>> ends;
  for (CUstream_st* stream : streams) ends.push_back(push_record(*stream));
  for (const std::shared_ptr<Completion>& end : ends) wait_for(*end);
}

void release_all() {
  const StateLock lock(state().lock);
  for (const std::unique_ptr<CUstream_st>& stream : state().streams) release(*stream, stream->enqueued);
}

cudaError_t enqueue(cudaStream_t stream, const char* what, std::function<void()> work) {
  const Unseen unseen;
  CUstream_st& target = checked_stream(stream, what);
  push(target, {.what = what, .run = std::move(work)});
  return cudaSuccess;
}

int device_of(cudaStream_t stream) { return checked_stream(stream, "device_of").device; }

void fail_device(cudaStream_t stream, cudaError_t error) {
  const StateLock lock(state().lock);
  if (state().failed[stream->device] == cudaSuccess) state().failed[stream->device] = error;
}

bool in_host_function() { return calling_host_function; }

void run_host_function(cudaHostFn_t function, void* argument) {
  calling_host_function = true;
  function(argument);
  calling_host_function = false;
}

}  // namespace cuda_sim
