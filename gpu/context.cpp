#include "gpu/context.h"

#include <cuda_runtime_api.h>

#include "gpu/check.h"

namespace spillway::cuda {

namespace {

// A thread starts on device 0, but joins the context that others made only when it asks for it.
thread_local int current_device = -1;

int opened(int index) {
  check(cudaSetDevice(index), "open device " + std::to_string(index));
  current_device = index;
  return index;
}

}  // namespace

Context::Context(int device) : index(opened(device)), name("cuda:" + std::to_string(device)) {}

void Context::enter() {
  failure.throw_if_any();
  if (current_device == index) return;
  failure.check(cudaSetDevice(index), "make current", name);
  current_device = index;
}

void Context::enter_to_release() const noexcept {
  if (current_device != index && cudaSetDevice(index) == cudaSuccess) current_device = index;
}

}  // namespace spillway::cuda
