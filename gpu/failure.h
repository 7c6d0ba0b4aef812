// The first failure of a device. A CUDA context does not recover from a fault, and what a failed call left undone nobody
// does again: from then on every call and every wait throws that same error.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <string_view>

#include <cuda_runtime_api.h>

namespace spillway::cuda {

// Thread-safe. The flag keeps the mutex out of healthy calls, which must not order threads among each other.
class Failure {
 public:
  // Throws the first failure, if there is one.
  void throw_if_any() const {
    if (happened()) rethrow();
  }
  bool happened() const { return happened_.load(std::memory_order_acquire); }

  // Keeps `error` unless there was one before.
  void keep(std::exception_ptr error);

  // Unless the call succeeded: keeps "[cuda] <attempted> <on>: ..." and throws the first failure.
  void check(cudaError_t error, std::string_view attempted, std::string_view on);

 private:
  [[noreturn]] void rethrow() const;

  std::atomic<bool> happened_{false};
  mutable std::mutex mutex_;
  std::exception_ptr first_;
};

}  // namespace spillway::cuda
