// Launches, and the attributes of kernels.
#include <cstring>
#include <map>
#include <vector>

#include "cuda_sim/block_runner.h"
#include "cuda_sim/launch_kernel.h"
#include "cuda_sim/device_limits.h"
#include "cuda_sim/runtime_state.h"

using namespace cuda_sim;

namespace {

// Dynamic shared memory that kernels were given leave for, by device. The lock is held.
std::map<const void*, int>& dynamic_limits(int device) {
  static auto* const limits = new std::map<const void*, int>[kMaxDevices];
  return limits[device];
}

int dynamic_limit(int device, const void* kernel) {
  const auto found = dynamic_limits(device).find(kernel);
  return found == dynamic_limits(device).end() ? static_cast<int>(kDefaultSharedBytes) : found->second;
}

bool within(const dim3& size, const unsigned (&limit)[3]) {
  const unsigned sizes[3] = {size.x, size.y, size.z};
  for (int axis = 0; axis < 3; ++axis) {
    if (sizes[axis] == 0 || sizes[axis] > limit[axis]) return false;
  }
  return true;
}

cudaError_t check_shape(const cudaLaunchConfig_t& config) {
  const dim3& block = config.blockDim;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (!within(config.gridDim, kMaxGrid) || !within(block, kMaxBlock) || threads > kMaxBlockThreads) return cudaErrorInvalidConfiguration;
  if (config.numAttrs != 0) violation("a launch with attributes, which the simulation does not know");
  if (threads % 32 != 0) violation("a block of %u threads; a multiple of 32 keeps every warp whole", static_cast<unsigned>(threads));
  return cudaSuccess;
}

// Whether this launch is the one that is to fault.
bool is_to_fail(State& s) { return s.settings.fail_launch > 0 && --s.settings.fail_launch == 0; }

}  // namespace

cudaError_t cuda_sim::launch_kernel(const cudaLaunchConfig_t& config, const KernelCall& call) {
  return api_call("cudaLaunchKernelEx", [&] {
    CUstream_st& stream = checked_stream(config.stream, "cudaLaunchKernelEx");
    if (const cudaError_t error = check_shape(config); error != cudaSuccess) return error;
    if (stream.device != current_device()) return cudaErrorInvalidResourceHandle;
    Grid grid{.grid = config.gridDim, .block = config.blockDim, .dynamic_bytes = config.dynamicSmemBytes, .thread = call.thread};
    bool fails;
    {
      State& s = state();
      const StateLock lock(s.lock);
      const auto limit = static_cast<std::size_t>(dynamic_limit(stream.device, call.kernel));
      if (grid.dynamic_bytes > limit) return cudaErrorInvalidValue;
      grid.shared_limit = limit > kDefaultSharedBytes ? kMaxSharedBytes : kDefaultSharedBytes;
      grid.order = s.settings.order;
      grid.order_seed = s.settings.order_seed;
      grid.racecheck = s.settings.racecheck && under_tsan();
      ++s.statistics.launches;
      fails = is_to_fail(s);
    }
    if (fails) {
      push(stream, {.what = "a kernel that faults", .run = [&stream] { fail_device(&stream, cudaErrorIllegalAddress); }});
      return cudaSuccess;
    }
    const auto* const bytes = static_cast<const std::byte*>(call.arguments);
    // operator new aligns for every argument that a kernel can have short of over-aligned ones.
    push(stream, {.what = "a kernel", .run = [grid, arguments = std::vector<std::byte>(bytes, bytes + call.argument_bytes)]() mutable {
                    grid.arguments = arguments.data();
                    BlockRunner::of_thread().run(grid);
                  }});
    return cudaSuccess;
  });
}

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return api_call("cudaFuncSetAttribute", [&] {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<std::size_t>(value) > kMaxSharedBytes) return cudaErrorInvalidValue;
    const StateLock lock(state().lock);
    dynamic_limits(current_device())[kernel] = value;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return api_call("cudaFuncGetAttributes", [&] {
    *attributes = {};
    attributes->maxThreadsPerBlock = kMaxBlockThreads;
    attributes->ptxVersion = attributes->binaryVersion = 10 * kComputeMajor + kComputeMinor;
    const StateLock lock(state().lock);
    attributes->maxDynamicSharedSizeBytes = dynamic_limit(current_device(), kernel);
    return cudaSuccess;
  });
}
}
