// Events of the CUDA device.
#pragma once

#include <atomic>
#include <cstdint>

#include "gpu/context.h"
#include "spillway/device.h"

namespace spillway::cuda {

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(Context& context);
  ~CudaEvent() override;

  // Asleep, not spinning: what waits on the host is not what bounds the step.
  void synchronize() override;
  bool finished() const override;
  std::int64_t time_ns() const override;

  // For streams. Before the first record there is nothing to wait for.
  void record(cudaStream_t stream);
  bool was_recorded() const { return recorded_ns_.load(std::memory_order_relaxed) != 0; }
  cudaEvent_t get() const { return event_.get(); }

 private:
  Context& context_;
  EventHandle event_;
  std::atomic<std::int64_t> recorded_ns_{0};  // host's clock; 0: never
};

}  // namespace spillway::cuda
