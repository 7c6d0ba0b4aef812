// NCCL with a single rank: start, collectives, a split, an abort; then the engine's own communicators for a world of one, which
// do without it. Sending takes a second card.
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <nccl.h>

#include "gpu/cuda_memory.h"
#include "gpu/program.h"
#include "spillway/communicator.h"
#include "spillway/device.h"
#include "spillway/error.h"

namespace spillway::bench {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

void check(ncclResult_t result, const std::string& attempted) {
  if (result != ncclSuccess) throw CommError("[nccl] " + attempted + ": " + ncclGetErrorString(result));
}

// Waits for what a communicator that does not block has begun.
void finish(ncclComm_t communicator, ncclResult_t begun, const std::string& attempted) {
  if (begun != ncclInProgress) check(begun, attempted);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress && std::chrono::steady_clock::now() < deadline) {
    check(ncclCommGetAsyncError(communicator, &state), attempted);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  check(state, attempted);
}

// As the engine has them.
ncclConfig_t configuration() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;
  return config;
}

// Sends `count` numbers through one collective from one part of device memory to another, and compares.
class Buffers {
 public:
  explicit Buffers(std::size_t count) : count_(count) {}

  void expect_copied(const std::string& by, const auto& collective) {
    const std::span<float> values = host_.as<float>();
    std::iota(values.begin(), values.end(), 1.0f);
    stream.copy(device_.data(), host_.data(), host_.size());
    collective(reinterpret_cast<const float*>(device_.data()), reinterpret_cast<float*>(device_.data()) + count_, count_);
    stream.copy(host_.data(), device_.data() + 4 * count_, 4 * count_);
    stream.synchronize();
    for (std::size_t i = 0; i < count_; ++i)
      if (values[i] != static_cast<float>(i + 1)) throw CommError(fmt::format("[nccl] {}: element {} is {}, expected {}", by, i, values[i], i + 1));
  }

  CudaStream stream;

 private:
  std::size_t count_;
  PinnedMemory host_{2 * 4 * count_};
  DeviceMemory device_{2 * 4 * count_};
};

void run_collectives(ncclComm_t communicator, std::size_t count) {
  Buffers buffers(count);
  cudaStream_t const stream = buffers.stream.get();
  buffers.expect_copied("all-gather", [&](const float* from, float* to, std::size_t n) {
    finish(communicator, ncclAllGather(from, to, 4 * n, ncclInt8, communicator, stream), "all-gather");
  });
  buffers.expect_copied("broadcast", [&](const float* from, float* to, std::size_t n) {
    finish(communicator, ncclBroadcast(from, to, 4 * n, ncclInt8, 0, communicator, stream), "broadcast");
  });
}

void check_library(std::size_t count) {
  cuda::check(cudaSetDevice(0), "use device 0");
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "make an id");
  ncclConfig_t config = configuration();
  ncclComm_t communicator = nullptr, part = nullptr;
  const ncclResult_t begun = ncclCommInitRankConfig(&communicator, 1, id, 0, &config);
  finish(communicator, begun, "start a communicator of one rank");
  run_collectives(communicator, count);
  finish(communicator, ncclCommSplit(communicator, 0, 0, &part, nullptr), "split a communicator");
  run_collectives(part, count);
  // What a run does when another rank has died.
  check(ncclCommAbort(part), "abort a communicator");
  check(ncclCommAbort(communicator), "abort a communicator");
}

void check_contract(std::int64_t bytes) {
  const std::unique_ptr<Device> device = make_cuda_device(0);
  const std::unique_ptr<World> self = make_self_world();
  const std::unique_ptr<World> of_devices = make_device_world(*self, *device, {});
  const std::unique_ptr<Communicator> communicator = (of_devices ? *of_devices : *self).communicator();
  std::byte* const arena = device->allocate_arena(2 * bytes);
  std::byte* const host = device->allocate_pinned(bytes);
  const std::unique_ptr<Stream> stream = device->make_stream("comm");
  const Part whole[] = {{0, bytes}};
  std::memset(host, 42, static_cast<std::size_t>(bytes));
  stream->copy(arena, host, bytes);
  communicator->all_gather(*stream, arena, whole);
  communicator->all_to_all(*stream, arena, whole, arena + bytes, whole);
  stream->synchronize();
  std::memset(host, 0, static_cast<std::size_t>(bytes));
  stream->copy(host, arena + bytes, bytes);
  stream->synchronize();
  for (std::int64_t i = 0; i < bytes; ++i)
    if (host[i] != std::byte{42}) throw CommError(fmt::format("[nccl] a world of one: byte {} is {}, expected 42", i, static_cast<int>(host[i])));
}

void check_all(bool quick) {
  const std::size_t count = quick ? 1 << 10 : 1 << 24;
  check_library(count);
  check_contract(static_cast<std::int64_t>(count));
  fmt::print("{{\"built_for_nccl\": {}, \"elements\": {}}}\n", NCCL_VERSION_CODE, count);
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) { return spillway::bench::run_program(argc, argv, spillway::bench::check_all); }
