// Streams of the CUDA device.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "gpu/context.h"
#include "gpu/event.h"
#include "gpu/host_calls.h"
#include "gpu/trace.h"
#include "spillway/device.h"

namespace spillway::cuda {

enum class Priority : bool { normal, high };

class CudaStream final : public Stream {
 public:
  CudaStream(Context& context, std::string_view name, Priority priority);
  // Waits for what is queued.
  ~CudaStream() override;

  // From and to memory of the Context's memory map only, else DeviceError; from host to host by a call of the host.
  void copy(void* dst, const void* src, std::int64_t bytes) override;
  void call(const HostCall& function) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void synchronize() override;
  void begin_range(std::string_view operation, std::string_view object) override { push_range(operation, object); }
  void end_range() override { pop_range(); }

  // For kernels and libraries. Makes the device current; throws its failure if it had one.
  cudaStream_t handle() const {
    context_.enter();
    return stream_.get();
  }

  // work(handle()); what it throws becomes the device's failure.
  template <class F>
  void enqueue(F&& work) {
    try {
      std::forward<F>(work)(handle());
    } catch (...) {
      context_.failure.keep(std::current_exception());
      context_.failure.throw_if_any();
    }
  }

  Context& context() const { return context_; }

 private:
  void check(cudaError_t error, std::string_view attempted) { context_.failure.check(error, attempted, full_name_); }
  void copy_piece(std::byte* dst, Place to, const std::byte* src, Place from, std::int64_t bytes);
  const Region& region_of(const void* address, std::int64_t bytes) const;

  Context& context_;
  const std::string full_name_;  // "stream 'h2d' of cuda:0"
  HostCalls calls_;
  CudaEvent end_;  // of synchronize()
  StreamHandle stream_;
};

// A stream that this device has made.
inline CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }

}  // namespace spillway::cuda
