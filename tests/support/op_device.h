// Runs kernels of the device under test on a test's guarded arrays: on the host device in place, on the CUDA device
// (SPILLWAY_TEST_DEVICE=cuda) on copies in the device arena. One test text serves both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "spillway/device.h"
#include "spillway/ops.h"
#include "support/guarded_array.h"
#include "support/kernel_check.h"

namespace spillway::test {

// Whether the CUDA device is under test. Tests may take fewer or smaller shapes there, since CI simulates it.
bool on_cuda();

// The one device of the test's process, opened at first use. Throws what make_cuda_device() throws: a CUDA device that
// was asked for and is not there is a failure.
Device& device_under_test();

// Where a run has its arrays. On a CUDA device an array is uploaded, guards included, when it is first named, and
// downloaded when the run has ended; its start is a multiple of 256 there as in any arena. Naming it again gives the
// same address; on(array) + 1 is a deliberately misaligned one.
class OpMemory {
 public:
  template <class T>
  T* operator()(GuardedArray<T>& array) {
    return reinterpret_cast<T*>(place(array.bytes()));
  }
  // nullptr unless wanted.
  template <class T>
  T* operator()(GuardedArray<T>& array, bool wanted) {
    return wanted ? (*this)(array) : nullptr;
  }
  std::byte* operator()(GuardedBytes& bytes) { return place(bytes); }

  // Unset memory for this run, between guards.
  std::span<std::byte> scratch(std::int64_t bytes);

  // Downloads everything; fails the test if a guard is not what it was.
  void finish(Stream& stream);

 private:
  std::byte* place(GuardedBytes& array);
  // In the device arena: room between guards, and an array with its guards.
  std::byte* reserve(std::int64_t bytes);
  void upload(GuardedBytes& array, std::byte* at);
  std::span<std::byte> scratch_in_arena(std::int64_t bytes);

  struct Placed {
    GuardedBytes* array;
    std::byte* at;
  };
  std::vector<Placed> placed_;
  std::deque<GuardedBytes> scratch_;
  std::int64_t used_ = 0;  // of the device arena
};

// Calls work(ops, stream, on), waits for what it enqueued, and brings the results back into the arrays. Throws the
// first error of that work.
void run_ops(DType dtype, const std::function<void(Ops&, Stream&, OpMemory&)>& work);

template <class T>
void run_ops(const std::function<void(Ops&, Stream&, OpMemory&)>& work) {
  run_ops(kDType<T>, work);
}

}  // namespace spillway::test
