#include "gpu/failure.h"

#include <string>
#include <utility>

#include "gpu/check.h"

namespace spillway::cuda {

void Failure::keep(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!first_) first_ = std::move(error);
  happened_.store(true, std::memory_order_release);
}

void Failure::check(cudaError_t error, std::string_view attempted, std::string_view on) {
  if (error == cudaSuccess) return;
  try {
    cuda::check(error, std::string(attempted) + " " + std::string(on));
  } catch (...) {
    keep(std::current_exception());
  }
  rethrow();
}

void Failure::rethrow() const {
  std::exception_ptr first;
  {
    const std::lock_guard lock(mutex_);
    first = first_;
  }
  std::rethrow_exception(first);
}

}  // namespace spillway::cuda
