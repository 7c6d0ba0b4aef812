// The runtime does what CUDA's does: right programs are right in every mode, and what fails fails with its error.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>
#include <numeric>
#include <string>
#include <vector>

#include "cuda_sim/cuda_sim.h"
#include "cuda_sim/sample_device.h"
#include "cuda_sim/sample_kernels.h"

namespace {

using sample::Device;
using sample::Event;
using sample::must;
using sample::Pinned;
using sample::Stream;

template <class Change>
void change_settings(Change change) {
  cuda_sim::Settings settings = cuda_sim::settings();
  change(settings);
  cuda_sim::set_settings(settings);
}

struct Mode {
  const char* name;
  bool lazy, sync, protect;
  std::uint64_t delay_seed;
};

class SimulatedMode : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    cuda_sim::reset();
    change_settings([](cuda_sim::Settings& settings) {
      settings.lazy = GetParam().lazy;
      settings.sync = GetParam().sync;
      settings.protect = GetParam().protect;
      settings.delay_seed = GetParam().delay_seed;
      settings.max_delay_us = 300;
    });
  }
  void TearDown() override { cuda_sim::reset(); }
};

INSTANTIATE_TEST_SUITE_P(Modes, SimulatedMode,
                         ::testing::Values(Mode{"Threads", false, false, false, 0}, Mode{"Delay", false, false, false, 7},
                                           Mode{"Lazy", true, false, false, 0}, Mode{"Sync", false, true, false, 0},
                                           Mode{"Protect", false, false, true, 0}, Mode{"SyncProtect", false, true, true, 0},
                                           Mode{"LazyProtectDelay", true, false, true, 9}),
                         [](const auto& info) { return std::string(info.param.name); });

// Uploads, computes and downloads in turns through two buffers, each stream waiting for what it needs and no more.
TEST_P(SimulatedMode, OverlapsCopiesWithKernels) {
  constexpr int kRounds = 6, kN = 100;
  const Stream h2d, compute, d2h;
  const Device<float> in(2 * kN), out(2 * kN);
  const Pinned<float> from(kRounds * kN), to(kRounds * kN);
  std::iota(from.values().begin(), from.values().end(), 0.0f);
  std::vector<Event> uploaded(2), computed(2), downloaded(2);
  for (std::size_t round = 0; round < kRounds; ++round) {
    const std::size_t slot = round % 2;
    float* const x = in + slot * kN;
    float* const y = out + slot * kN;
    if (round >= 2) must(cudaStreamWaitEvent(h2d, computed[slot], 0));
    must(cudaMemcpyAsync(x, from + round * kN, kN * sizeof(float), cudaMemcpyHostToDevice, h2d));
    must(cudaEventRecord(uploaded[slot], h2d));
    must(cudaStreamWaitEvent(compute, uploaded[slot], 0));
    if (round >= 2) must(cudaStreamWaitEvent(compute, downloaded[slot], 0));
    sample::scale(y, x, kN, 2, compute);
    must(cudaEventRecord(computed[slot], compute));
    must(cudaStreamWaitEvent(d2h, computed[slot], 0));
    must(cudaMemcpyAsync(to + round * kN, y, kN * sizeof(float), cudaMemcpyDefault, d2h));
    must(cudaEventRecord(downloaded[slot], d2h));
  }
  d2h.synchronize();
  for (std::size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], 2.0f * static_cast<float>(i));
  EXPECT_EQ(cuda_sim::statistics().pageable_copies, 0);
  EXPECT_EQ(cuda_sim::statistics().launches, kRounds);
  EXPECT_EQ(cuda_sim::statistics().copies, 2 * kRounds);
  EXPECT_EQ(cuda_sim::statistics().synchronisations(), 1);
}

TEST_P(SimulatedMode, KeepsTheOrderOfAStream) {
  const Stream stream;
  const Device<float> x(300);
  for (int value = 0; value < 20; ++value) sample::fill(x, 300, static_cast<float>(value), stream);
  must(cudaMemsetAsync(x + 10, 0, 10 * sizeof(float), stream));
  const std::vector<float> values = sample::values_of(x, stream);
  for (std::size_t i = 0; i < 300; ++i) ASSERT_EQ(values[i], i >= 10 && i < 20 ? 0.0f : 19.0f + static_cast<float>(i));
}

TEST_P(SimulatedMode, CopiesFromPageableMemoryAtOnceAndCountsIt) {
  const Stream stream;
  const Device<float> x(64), y(64);
  std::vector<float> host(64, 3.0f);
  must(cudaMemcpyAsync(x, host.data(), 64 * sizeof(float), cudaMemcpyHostToDevice, stream));
  host.assign(64, 0.0f);
  sample::scale(y, x, 64, 2, stream);
  must(cudaMemcpyAsync(host.data(), y, 64 * sizeof(float), cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(host, std::vector<float>(64, 6.0f));
  EXPECT_EQ(cuda_sim::statistics().pageable_copies, 2);
  must(cudaHostRegister(host.data(), 64 * sizeof(float), cudaHostRegisterDefault));
  must(cudaMemcpyAsync(host.data(), x, 64 * sizeof(float), cudaMemcpyDeviceToHost, stream));
  stream.synchronize();
  must(cudaHostUnregister(host.data()));
  EXPECT_EQ(host, std::vector<float>(64, 3.0f));
  EXPECT_EQ(cuda_sim::statistics().pageable_copies, 2);
}

TEST_P(SimulatedMode, FinishesPolledWork) {
  const Stream stream;
  const Event event;
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess) << "an event that was never recorded has nothing to wait for";
  const Device<float> x(64);
  sample::fill(x, 64, 1, stream);
  must(cudaEventRecord(event, stream));
  while (cudaEventQuery(event) == cudaErrorNotReady) {
  }
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_GE(cuda_sim::statistics().queries, 2);
  EXPECT_EQ(cuda_sim::statistics().synchronisations(), 0);
}

TEST_P(SimulatedMode, MeasuresTimeBetweenEvents) {
  const Stream stream;
  const Event start, end;
  const Device<float> x(64);
  must(cudaEventRecord(start, stream));
  sample::fill(x, 64, 1, stream);
  must(cudaEventRecord(end, stream));
  must(cudaEventSynchronize(end));
  float ms = -1;
  must(cudaEventElapsedTime(&ms, start, end));
  EXPECT_GT(ms, 0.0f);
  float back = 1;
  must(cudaEventElapsedTime(&back, end, start));
  EXPECT_EQ(back, -ms);
}

class SimulatedRuntime : public ::testing::Test {
 protected:
  void SetUp() override { cuda_sim::reset(); }
  void TearDown() override { cuda_sim::reset(); }
};

TEST_F(SimulatedRuntime, RunsNothingThatNobodyWaitsForWhenLazy) {
  change_settings([](cuda_sim::Settings& settings) { settings.lazy = true; });
  std::atomic<bool> ran{false};
  const auto set = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); };
  const Stream idle, busy;
  must(cudaLaunchHostFunc(idle, set, &ran));
  const Device<float> x(64);
  sample::fill(x, 64, 1, busy);
  busy.synchronize();
  EXPECT_FALSE(ran.load());
  idle.synchronize();
  EXPECT_TRUE(ran.load());
}

TEST_F(SimulatedRuntime, HasRunWhatIsEnqueuedWhenSync) {
  change_settings([](cuda_sim::Settings& settings) { settings.sync = true; });
  std::atomic<bool> ran{false};
  const Stream stream;
  must(cudaLaunchHostFunc(stream, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }, &ran));
  EXPECT_TRUE(ran.load());
}

TEST_F(SimulatedRuntime, RefusesCopiesBeyondTheirMemoryOrOfTheWrongKind) {
  const Stream stream;
  const Device<float> x(64), y(64);
  const Pinned<float> host(128);
  const auto copy = [&](void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(dst, src, bytes, kind, stream);
  };
  EXPECT_EQ(copy(x, host, 65 * 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(x + 1, host, 64 * 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(host, x, 65 * 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(x, host, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(x, y, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(x, host, 4, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(x, 0, 65 * 4, stream), cudaErrorInvalidValue);
  std::array<float, 1> pageable{};
  EXPECT_EQ(cudaMemsetAsync(pageable.data(), 0, 4, stream), cudaErrorInvalidValue);
  EXPECT_EQ(copy(x, y, 64 * 4, cudaMemcpyDeviceToDevice), cudaSuccess);
  EXPECT_EQ(copy(x, y, 0, cudaMemcpyDeviceToDevice), cudaSuccess);
  stream.synchronize();
}

TEST_F(SimulatedRuntime, RunsOutOfDeviceMemory) {
  change_settings([](cuda_sim::Settings& settings) { settings.memory_bytes = 1 << 20; });
  const Device<char> half(1 << 19);
  std::size_t free = 0, total = 0;
  must(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(free, std::size_t{1} << 19);
  EXPECT_EQ(total, std::size_t{1} << 20);
  void* p = &free;
  EXPECT_EQ(cudaMalloc(&p, (1 << 19) + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(p, nullptr);
  // What the device says it has is not always to be had.
  change_settings([](cuda_sim::Settings& settings) { settings.fail_allocation_after = 600000; });
  EXPECT_EQ(cudaMalloc(&p, 100000), cudaErrorMemoryAllocation);
  must(cudaMalloc(&p, 1000));
  must(cudaFree(p));
}

TEST_F(SimulatedRuntime, PinsHostMemoryOnce) {
  std::vector<char> memory(1 << 16);
  must(cudaHostRegister(memory.data(), 4096, cudaHostRegisterDefault));
  EXPECT_EQ(cudaHostRegister(memory.data() + 4095, 4096, cudaHostRegisterDefault), cudaErrorHostMemoryAlreadyRegistered);
  must(cudaHostRegister(memory.data() + 4096, 4096, cudaHostRegisterDefault));
  cudaPointerAttributes attributes{};
  must(cudaPointerGetAttributes(&attributes, memory.data() + 5000));
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  must(cudaPointerGetAttributes(&attributes, memory.data() + 8192));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  must(cudaHostUnregister(memory.data()));
  must(cudaHostUnregister(memory.data() + 4096));
  EXPECT_EQ(cudaHostUnregister(memory.data()), cudaErrorHostMemoryNotRegistered);
  change_settings([](cuda_sim::Settings& settings) { settings.refuse_pinning = true; });
  EXPECT_EQ(cudaHostRegister(memory.data(), 4096, cudaHostRegisterDefault), cudaErrorMemoryAllocation);
  void* p = nullptr;
  EXPECT_EQ(cudaHostAlloc(&p, 4096, cudaHostAllocDefault), cudaErrorMemoryAllocation);
}

TEST_F(SimulatedRuntime, SaysWhatKeepsADriverFromWorking) {
  struct Case {
    cuda_sim::Driver driver;
    cudaError_t error;
    int code, version;
    const char* text;
  };
  for (const Case& expected :
       {Case{cuda_sim::Driver::absent, cudaErrorInsufficientDriver, 35, 0, "CUDA driver version is insufficient for CUDA runtime version"},
        Case{cuda_sim::Driver::stub, cudaErrorStubLibrary, 34, 0, "CUDA driver is a stub library"},
        Case{cuda_sim::Driver::no_device, cudaErrorNoDevice, 100, 13000, "no CUDA-capable device is detected"}}) {
    change_settings([&](cuda_sim::Settings& settings) { settings.driver = expected.driver; });
    int count = 7, version = 7;
    EXPECT_EQ(cudaGetDeviceCount(&count), expected.error);
    EXPECT_EQ(static_cast<int>(expected.error), expected.code);
    EXPECT_EQ(count, 0);
    EXPECT_STREQ(cudaGetErrorString(expected.error), expected.text);
    must(cudaDriverGetVersion(&version));
    EXPECT_EQ(version, expected.version);
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, 64), expected.error);
  }
  change_settings([](cuda_sim::Settings& settings) {
    settings.driver = cuda_sim::Driver::present;
    settings.driver_version = 12080;
  });
  EXPECT_EQ(cudaSetDevice(0), cudaErrorInsufficientDriver);
}

TEST_F(SimulatedRuntime, KeepsTheErrorOfAFaultyLaunch) {
  const Stream stream;
  const Event event;
  Device<float>* const x = new Device<float>(64);  // its cudaFree, too, would answer with the error
  std::atomic<int> calls{0};
  const auto call = [](void* count) { ++*static_cast<std::atomic<int>*>(count); };
  // Everything is enqueued before the fault happens, from which on each enqueue is refused.
  std::latch all_enqueued(1);
  must(cudaLaunchHostFunc(stream, [](void* latch) { static_cast<std::latch*>(latch)->wait(); }, &all_enqueued));
  must(cudaLaunchHostFunc(stream, call, &calls));
  change_settings([](cuda_sim::Settings& settings) { settings.fail_launch = 2; });
  sample::fill(*x, 64, 1, stream);
  sample::fill(*x, 64, 2, stream);
  must(cudaLaunchHostFunc(stream, call, &calls));
  must(cudaEventRecord(event, stream));
  all_enqueued.count_down();
  EXPECT_EQ(cudaEventSynchronize(event), cudaErrorIllegalAddress);
  EXPECT_EQ(calls.load(), 1);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemsetAsync(*x, 0, 64, stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress) << "sticky";
  cuda_sim::reset();
  EXPECT_EQ(sample::values_of(*x, stream)[63], 64.0f) << "the launch before the fault ran, the fault wrote nothing";
  delete x;
}

// Each stream has stacks for the threads of its kernels. If they outlived it, the process would run out of mappings.
TEST_F(SimulatedRuntime, LeavesNothingOfAStream) {
  const Stream other;
  const Device<float> x(64), y(64);
  sample::fill(x, 64, 1, other);
  other.synchronize();
  for (int i = 0; i < 600; ++i) {
    const Stream stream;
    sample::neighbour(y, x, stream);
    stream.synchronize();
  }
  EXPECT_EQ(sample::values_of(y, other)[63], 1.0f);
}

TEST_F(SimulatedRuntime, KeepsDevicesApart) {
  change_settings([](cuda_sim::Settings& settings) {
    settings.devices = 3;
    settings.memory_bytes = 1 << 20;
  });
  int count = 0, can = 0;
  must(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 3);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
  must(cudaDeviceCanAccessPeer(&can, 0, 2));
  EXPECT_EQ(can, 1);
  const Stream on_first;
  must(cudaSetDevice(1));
  {
    const Device<char> x(1 << 20);
    const Stream on_second;
    const Event event;
    int device = -1;
    must(cudaStreamGetDevice(on_second, &device));
    EXPECT_EQ(device, 1);
    EXPECT_EQ(sample::try_launch({1}, {32}, 0, on_first), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaEventRecord(event, on_first), cudaErrorInvalidResourceHandle);
    must(cudaEventRecord(event, on_second));
    must(cudaStreamWaitEvent(on_first, event, 0));
    on_first.synchronize();
    std::size_t free = 0, total = 0;
    must(cudaMemGetInfo(&free, &total));
    EXPECT_EQ(free, 0u);
    must(cudaSetDevice(2));
    must(cudaMemGetInfo(&free, &total));
    EXPECT_EQ(free, total);
  }
  std::array<char, 16> second{}, third{};
  must(cudaDeviceGetPCIBusId(second.data(), 16, 1));
  must(cudaDeviceGetPCIBusId(third.data(), 16, 2));
  EXPECT_NE(second, third);
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, 2));
  EXPECT_EQ(properties.totalGlobalMem, std::size_t{1} << 20);
  EXPECT_EQ(properties.major, 9);
  must(cudaSetDevice(0));
}

}  // namespace
