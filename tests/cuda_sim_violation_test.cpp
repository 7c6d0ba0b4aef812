// Each planted mistake is found, in words that say what is wrong and where. Where a sanitizer sees more than the
// simulation does, its report is as good.
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdlib>
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

// The statement touches memory that it must not.
#if defined(__SANITIZE_ADDRESS__)
#define EXPECT_FAULT(statement) EXPECT_DEATH(statement, "AddressSanitizer: (use-after-poison|SEGV)")
#elif defined(__SANITIZE_THREAD__)
#define EXPECT_FAULT(statement) EXPECT_DEATH(statement, "ThreadSanitizer: SEGV")
#else
#define EXPECT_FAULT(statement) EXPECT_EXIT(statement, ::testing::KilledBySignal(SIGSEGV), "")
#endif

class SimulationFinds : public ::testing::Test {
 protected:
  // Streams are threads, which a plain fork does not copy.
  SimulationFinds() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void SetUp() override { cuda_sim::reset(); }
};

void run_mistake(void (*mistake)(float*, cudaStream_t)) {
  const Stream stream;
  const Device<float> x(64);
  mistake(x, stream);
  stream.synchronize();
}

TEST_F(SimulationFinds, ADivergentBarrier) {
  EXPECT_DEATH(run_mistake(sample::divergent_barrier),
               "violation: divergent __syncthreads: thread 32 of a block is at .*sample_mistakes.cu:[0-9]+, others wait at");
}

TEST_F(SimulationFinds, AReturnBeforeABarrier) {
  EXPECT_DEATH(run_mistake(sample::return_before_barrier),
               "violation: thread 63 of a block returned while others wait in __syncthreads at .*sample_mistakes.cu:[0-9]+");
}

TEST_F(SimulationFinds, AReturnBeforeABarrierInReverseOrder) {
  EXPECT_DEATH(
      {
        cuda_sim::Settings settings = cuda_sim::settings();
        settings.order = cuda_sim::ThreadOrder::reverse;
        cuda_sim::set_settings(settings);
        run_mistake(sample::return_before_barrier);
      },
      "violation: thread 62 of a block waits in __syncthreads at .*, which 1 threads that returned will not reach");
}

TEST_F(SimulationFinds, AMaskWithoutItsCaller) {
  EXPECT_DEATH(run_mistake(sample::foreign_mask), "violation: __shfl_xor_sync at .*: lane 16 is not in its own mask 0000ffff");
}

TEST_F(SimulationFinds, AMaskThatNamesAReturnedLane) {
  EXPECT_DEATH(run_mistake(sample::mask_of_returned_lane), "violation: thread 5 of a block returned while its warp waits for it");
}

TEST_F(SimulationFinds, LanesInDifferentOperations) {
  EXPECT_DEATH(run_mistake(sample::different_warp_operations),
               "violation: lane 16 is in __ballot_sync .*, but others of its warp are in __shfl_xor_sync");
}

TEST_F(SimulationFinds, ADeadlockAndItsLines) {
  EXPECT_DEATH(run_mistake(sample::half_warp_waits),
               "violation: deadlock of a block, 0 of its 64 threads returned:\n.*thread 0: in __shfl_xor_sync at "
               ".*sample_mistakes.cu:[0-9]+\n.*thread 16: in __syncthreads at .*sample_mistakes.cu:[0-9]+");
}

TEST_F(SimulationFinds, TooMuchSharedMemory) {
  EXPECT_DEATH(run_mistake(sample::too_much_shared), "violation: .*sample_mistakes.cu:.* this launch may have 49152");
}

TEST_F(SimulationFinds, ABlockWithATornWarp) {
  EXPECT_DEATH(run_mistake(sample::odd_block), "violation: a block of 33 threads; a multiple of 32");
}

TEST_F(SimulationFinds, ARuntimeCallInAKernel) {
  EXPECT_DEATH(run_mistake(sample::call_runtime), "violation: cudaGetDevice called in a kernel");
}

// The byte behind an allocation of whole 256-byte pieces is on a page that nobody may touch; AddressSanitizer knows
// every byte.
TEST_F(SimulationFinds, AWritePastTheEndOfDeviceMemory) {
  EXPECT_FAULT(
      {
        const Stream stream;
        const Device<float> x(128);
        sample::past_the_end(x, 128, stream);
        stream.synchronize();
      });
#ifdef __SANITIZE_ADDRESS__
  EXPECT_DEATH(
      {
        const Stream stream;
        const Device<float> x(100);
        sample::past_the_end(x, 100, stream);
        stream.synchronize();
      },
      "SUMMARY: AddressSanitizer: use-after-poison .*sample_mistakes.cu:[0-9]+ in past_the_end_kernel");
#endif
}

TEST_F(SimulationFinds, AWritePastASharedArray) {
  EXPECT_DEATH(
      {
        const Stream stream;
        const Device<float> x(64);
        sample::past_shared_array(x, 64, stream);
        stream.synchronize();
      },
      "wrote 0 bytes past the 256 bytes of shared memory of .*sample_mistakes.cu|use-after-poison");
}

TEST_F(SimulationFinds, AWritePastDynamicSharedMemory) {
  EXPECT_DEATH(
      {
        const Stream stream;
        const Device<float> x(64);
        sample::past_shared_dynamic(x, 65, stream);
        stream.synchronize();
      },
      "wrote 4 bytes past the 256 bytes of shared memory of dynamic|use-after-poison");
}

TEST_F(SimulationFinds, AKernelOnFreedMemory) {
  EXPECT_FAULT(
      {
        const Stream stream;
        float* freed = nullptr;
        {
          const Device<float> x(64);
          freed = x;
        }
        sample::fill(freed, 64, 1, stream);
        stream.synchronize();
      });
}

TEST_F(SimulationFinds, ACopyOfFreedMemory) {
  EXPECT_DEATH(
      {
        const Stream stream;
        const Pinned<float> host(64);
        float* freed = nullptr;
        {
          const Device<float> x(64);
          freed = x;
        }
        sample::download(host, static_cast<const float*>(freed), stream);
      },
      "violation: copy from device memory at .* that is freed or never was");
}

TEST_F(SimulationFinds, MemoryFreedTwice) {
  EXPECT_DEATH(
      {
        void* p = nullptr;
        must(cudaMalloc(&p, 64));
        must(cudaFree(p));
        cudaFree(p);
      },
      "violation: cudaFree of device memory at .* that is freed already");
}

TEST_F(SimulationFinds, AWaitForAnEventNeverRecorded) {
  EXPECT_DEATH(
      {
        const Stream stream;
        const Event event;
        cudaStreamWaitEvent(stream, event, 0);
      },
      "violation: cudaStreamWaitEvent for an event that was never recorded");
}

TEST_F(SimulationFinds, UseOfADefaultStream) {
  EXPECT_DEATH(cudaStreamSynchronize(nullptr), "violation: cudaStreamSynchronize on a default stream");
  EXPECT_DEATH(
      {
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamDefault);
      },
      "violation: a stream that is ordered with the default stream");
}

TEST_F(SimulationFinds, UseOfADestroyedStream) {
  EXPECT_DEATH(
      {
        cudaStream_t stream = nullptr;
        must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        must(cudaStreamDestroy(stream));
        cudaStreamSynchronize(stream);
      },
      "violation: cudaStreamSynchronize on a destroyed stream");
}

TEST_F(SimulationFinds, PinnedMemoryFreedBeforeItsCopyRan) {
  EXPECT_DEATH(
      {
        cuda_sim::Settings settings = cuda_sim::settings();
        settings.lazy = true;
        cuda_sim::set_settings(settings);
        const Stream stream;
        const Device<float> x(64);
        void* host = nullptr;
        must(cudaHostAlloc(&host, 256, cudaHostAllocDefault));
        must(cudaMemcpyAsync(x, host, 256, cudaMemcpyHostToDevice, stream));
        cudaFreeHost(host);
      },
      "violation: cudaFreeHost of host memory that work enqueued earlier .cudaMemcpyAsync. has not finished with");
}

TEST_F(SimulationFinds, ARuntimeCallInAHostFunction) {
  EXPECT_DEATH(
      {
        const Stream stream;
        must(cudaLaunchHostFunc(stream, [](void*) { cudaDeviceSynchronize(); }, nullptr));
        stream.synchronize();
      },
      "violation: cudaDeviceSynchronize called in a host function");
}

TEST_F(SimulationFinds, DeviceMemoryReadByTheHost) {
  EXPECT_FAULT(
      {
        cuda_sim::Settings settings = cuda_sim::settings();
        settings.sync = settings.protect = true;
        cuda_sim::set_settings(settings);
        const Stream stream;
        const Device<float> x(64);
        sample::fill(x, 64, 1, stream);
        std::exit(static_cast<float*>(x)[0] == 1 ? 0 : 1);
      });
}

TEST_F(SimulationFinds, AMisspeltSetting) {
  for (const auto& [variable, value] : {std::array{"CUDA_SIM_MODE", "lzy"}, std::array{"CUDA_SIM_MODE", "delay=x"},
                                        std::array{"CUDA_SIM_ORDER", "backward"}, std::array{"CUDA_SIM_DEVICE", "count=9"},
                                        std::array{"CUDA_SIM_FAULT", "launch"}}) {
    EXPECT_DEATH(
        {
          setenv(variable, value, 1);
          cuda_sim::reset();
        },
        std::string("violation: ") + variable);
  }
}

}  // namespace
