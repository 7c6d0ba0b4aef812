// Programs with one missing order each, named by the argument. Built with ThreadSanitizer only, which has to call each a
// data race, though the work happens to run in the right order: nothing in the simulation's queues and locks may
// order what CUDA does not. With "sound" everything is ordered, in every mode, and there must be no report.
#include <atomic>
#include <cstring>
#include <string_view>
#include <thread>

#include "cuda_sim/cuda_sim.h"
#include "cuda_sim/sample_device.h"
#include "cuda_sim/sample_kernels.h"

namespace {

using sample::Device;
using sample::Event;
using sample::must;
using sample::Pinned;
using sample::Stream;

constexpr int kN = 64;

// Waits until what is enqueued has run, by a relaxed load, which orders nothing.
void wait_unseen(const Stream& stream) {
  static std::atomic<int> calls{0};
  const int before = calls.load(std::memory_order_relaxed);
  must(cudaLaunchHostFunc(stream, [](void*) { calls.fetch_add(1, std::memory_order_relaxed); }, nullptr));
  while (calls.load(std::memory_order_relaxed) == before) std::this_thread::yield();
}

// Some work on each, so that locks and queues have been through every state.
void warm_up(const Stream& a, const Stream& b) {
  const Event event;
  for (int i = 0; i < 3; ++i) {
    must(cudaEventRecord(event, a));
    must(cudaStreamWaitEvent(b, event, 0));
    must(cudaEventRecord(event, b));
    must(cudaStreamWaitEvent(a, event, 0));
  }
  a.synchronize();
  b.synchronize();
}

// Stream b reads what stream a wrote.
void between_streams(bool waits) {
  const Stream a, b;
  warm_up(a, b);
  const Device<float> x(kN), y(kN);
  const Event event;
  sample::fill(x, kN, 1, a);
  if (waits) {
    must(cudaEventRecord(event, a));
    must(cudaStreamWaitEvent(b, event, 0));
  } else {
    wait_unseen(a);
  }
  sample::scale(y, x, kN, 2, b);
  b.synchronize();
  a.synchronize();
}

// The event that is waited for was recorded before the write, once, and again after it by someone who came too late.
void of_an_older_record() {
  const Stream a, b;
  warm_up(a, b);
  const Device<float> x(kN), y(kN);
  const Event event;
  must(cudaEventRecord(event, a));
  must(cudaStreamWaitEvent(b, event, 0));
  sample::fill(x, kN, 1, a);
  wait_unseen(a);
  sample::scale(y, x, kN, 2, b);
  must(cudaEventRecord(event, a));
  b.synchronize();
  a.synchronize();
}

// The host reads what a copy brought.
void before_the_host_reads(bool waits) {
  const Stream a, b;
  warm_up(a, b);
  const Device<float> x(kN);
  const Pinned<float> host(kN);
  sample::fill(x, kN, 1, a);
  sample::download(host, static_cast<const float*>(x), a);
  waits ? a.synchronize() : wait_unseen(a);
  const float last = host[kN - 1];
  a.synchronize();
  if (last != kN) std::abort();
}

// The host writes what a copy is to take away.
void before_the_host_writes(bool waits) {
  const Stream a, b;
  warm_up(a, b);
  const Device<float> x(kN);
  const Pinned<float> host(kN);
  const Event taken;
  for (float& value : host.values()) value = 1;
  sample::upload(static_cast<float*>(x), host, a);
  must(cudaEventRecord(taken, a));
  if (waits) {
    must(cudaEventSynchronize(taken));
  } else {
    wait_unseen(a);
  }
  host[0] = 2;
  a.synchronize();
}

// A buffer is used again while its last reader may still read.
void before_reuse(bool waits) {
  const Stream a, b;
  warm_up(a, b);
  const Device<float> x(kN), y(kN);
  const Event written, read;
  sample::fill(x, kN, 1, a);
  must(cudaEventRecord(written, a));
  must(cudaStreamWaitEvent(b, written, 0));
  sample::scale(y, x, kN, 2, b);
  must(cudaEventRecord(read, b));
  if (waits) {
    must(cudaStreamWaitEvent(a, read, 0));
  } else {
    wait_unseen(b);
  }
  sample::fill(x, kN, 3, a);
  a.synchronize();
  b.synchronize();
}

// A host function's work, and the host that looks at it.
void of_a_host_function(bool waits) {
  const Stream a, b;
  warm_up(a, b);
  int value = 0;
  must(cudaLaunchHostFunc(a, [](void* p) { *static_cast<int*>(p) = 1; }, &value));
  waits ? a.synchronize() : wait_unseen(a);
  if (value != 1) std::abort();
  a.synchronize();
}

void within_a_block(bool barrier) {
  cuda_sim::Settings settings = cuda_sim::settings();
  settings.racecheck = true;
  cuda_sim::set_settings(settings);
  const Stream a;
  const Device<float> x(kN), y(kN);
  const Device<unsigned> warps(sample::kWarpResults * 64);
  sample::fill(x, kN, 1, a);
  if (barrier) {
    sample::neighbour(y, x, a);
    sample::row_softmax(y, x, 2, kN / 2, a);
    sample::reverse_rows(x, 2, kN / 2, a);
    sample::warp_operations(warps, a);
  } else {
    sample::neighbour_without_barrier(y, x, a);
  }
  a.synchronize();
}

void sound() {
  for (int mode = 0; mode < 4; ++mode) {
    cuda_sim::Settings settings = cuda_sim::settings();
    settings.lazy = mode == 1;
    settings.sync = mode == 2;
    settings.delay_seed = mode == 3 ? 5 : 0;
    cuda_sim::set_settings(settings);
    between_streams(true);
    before_the_host_reads(true);
    before_the_host_writes(true);
    before_reuse(true);
    of_a_host_function(true);
  }
  cuda_sim::reset();
  within_a_block(true);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc == 2 ? argv[1] : "";
  if (name == "sound") {
    sound();
  } else if (name == "between_streams") {
    between_streams(false);
  } else if (name == "of_an_older_record") {
    of_an_older_record();
  } else if (name == "before_the_host_reads") {
    before_the_host_reads(false);
  } else if (name == "before_the_host_writes") {
    before_the_host_writes(false);
  } else if (name == "before_reuse") {
    before_reuse(false);
  } else if (name == "of_a_host_function") {
    of_a_host_function(false);
  } else if (name == "within_a_block") {
    within_a_block(false);
  } else {
    return 2;
  }
  return 0;
}
