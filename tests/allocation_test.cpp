// A training step allocates nothing, on any thread, and starts none: every way of asking the C library for memory is
// counted, every way of asking the kernel, and every thread.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "support/training.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<long> heap_requests{0}, kernel_requests{0}, thread_starts{0};

// Not in a thread's own storage, whose first use may allocate itself.
void count(std::atomic<long>& requests) {
  if (counting.load(std::memory_order_relaxed)) requests.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

// glibc's own entry points, which the replaced names lead to. operator new ends in malloc.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* data, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) {
  count(heap_requests);
  return __libc_malloc(bytes);
}

void* calloc(std::size_t n, std::size_t bytes) {
  count(heap_requests);
  return __libc_calloc(n, bytes);
}

void* realloc(void* data, std::size_t bytes) {
  count(heap_requests);
  return __libc_realloc(data, bytes);
}

void* memalign(std::size_t alignment, std::size_t bytes) {
  count(heap_requests);
  return __libc_memalign(alignment, bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void** data, std::size_t alignment, std::size_t bytes) {
  *data = memalign(alignment, bytes);
  return *data == nullptr ? ENOMEM : 0;
}

// Large-file builds call the first of these mmap.
void* counted_mmap64(void* address, std::size_t bytes, int protection, int flags, int file, std::int64_t offset) __asm__("mmap64");
void* counted_mmap(void* address, std::size_t bytes, int protection, int flags, int file, std::int64_t offset) __asm__("mmap");

void* counted_mmap64(void* address, std::size_t bytes, int protection, int flags, int file, std::int64_t offset) {
  count(kernel_requests);
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

void* counted_mmap(void* address, std::size_t bytes, int protection, int flags, int file, std::int64_t offset) {
  return counted_mmap64(address, bytes, protection, flags, file, offset);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*entry)(void*), void* argument) {
  count(thread_starts);
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, entry, argument);
}
}

namespace spillway {
namespace {

using testing::RunSetup;
using testing::ScratchFolder;

// Enough for the scheduler's pools of small objects, which grow until every thread has met every other.
constexpr int kWarmUpSteps = 20;
constexpr int kCountedSteps = 10;

struct Requests {
  long heap;
  long kernel;
  long threads;
};

// Whole steps with their tails: the engine is drained before the counting ends.
Requests requests_of_steps(const RunSetup& setup) {
  const std::unique_ptr<Engine> engine = testing::make_engine(setup);
  int step = 0;
  const auto run = [&](int steps) {
    for (const int end = step + steps; step < end; ++step) {
      testing::fill_batch(*engine, setup, step);
      engine->step();
    }
    engine->drain();
  };
  run(kWarmUpSteps);
  heap_requests = kernel_requests = thread_starts = 0;
  counting = true;
  run(kCountedSteps);
  counting = false;
  EXPECT_EQ(engine->applied_steps(), kWarmUpSteps + kCountedSteps);
  return {heap_requests, kernel_requests, thread_starts};
}

void expect_no_requests(const RunSetup& setup, const std::string& what) {
  const Requests requests = requests_of_steps(setup);
  EXPECT_EQ(requests.heap, 0) << what;
  EXPECT_EQ(requests.kernel, 0) << what;
  EXPECT_EQ(requests.threads, 0) << what;
}

RunSetup run_on(OffloadDevice device, const std::string& folder) {
  RunSetup setup = testing::tiny_run();
  for (OffloadConfig* offload : {&setup.config.offload_param, &setup.config.offload_optimizer}) {
    offload->device = device;
    offload->nvme_paths = {folder};
  }
  return setup;
}

TEST(Allocation, TheCountersAreInPlace) {
  counting = true;
  int* volatile object = new int(1);
  void* volatile block = std::calloc(3, 5);
  block = std::realloc(block, 100);
  void* aligned = nullptr;
  const int failed = posix_memalign(&aligned, 64, 128);
  void* const pages = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::thread([] {}).join();
  counting = false;
  EXPECT_EQ(failed, 0);
  EXPECT_GE(heap_requests, 4);
  EXPECT_GE(kernel_requests, 1);
  EXPECT_EQ(thread_starts, 1);
  munmap(pages, 4096);
  std::free(aligned);
  std::free(block);
  delete object;
}

TEST(Allocation, AStepOnTheDeviceAsksForNothing) { expect_no_requests(run_on(OffloadDevice::none, ""), "none"); }

TEST(Allocation, AStepOnCpuAsksForNothing) { expect_no_requests(run_on(OffloadDevice::cpu, ""), "cpu"); }

TEST(Allocation, AStepOnNvmeAsksForNothingOfAnyIoEngine) {
  const ScratchFolder folder;
  for (const std::string_view engine : io_engine_names()) {
    RunSetup setup = run_on(OffloadDevice::nvme, folder.path());
    setup.config.spillway.io_engine = engine;
    expect_no_requests(setup, std::string(engine));
  }
}

TEST(Allocation, AStepMixedByBudgetAsksForNothing) {
  const ScratchFolder folder;
  RunSetup setup = run_on(OffloadDevice::nvme, folder.path());
  setup.config.spillway.placement = PlacementPolicy::fill;
  setup.config.spillway.device_memory = testing::plan_of(setup).tiers[0].peak * 6 / 10;
  setup.config.spillway.host_memory = testing::plan_of(setup).tiers[1].peak * 9 / 10;
  expect_no_requests(setup, "fill");
}

TEST(Allocation, AnAccumulatedStepAsksForNothing) {
  const ScratchFolder folder;
  for (const OffloadDevice device : {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme}) {
    RunSetup setup = run_on(device, folder.path());
    setup.config.accumulation_steps = 4;
    setup.config.train_batch_size = 8;
    expect_no_requests(setup, "accumulation, device " + std::to_string(static_cast<int>(device)));
  }
}

TEST(Allocation, AStepOfFourThreadsAsksForNothing) {
  const ScratchFolder folder;
  RunSetup setup = run_on(OffloadDevice::nvme, folder.path());
  setup.config.spillway.threads = 4;
  expect_no_requests(setup, "four threads");
}

}  // namespace
}  // namespace spillway
