// Memory, streams and events of the CUDA runtime for programs that call it beside the engine: as a roof, or to ask a library
// what it can do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <cuda_runtime_api.h>

#include "gpu/check.h"
#include "gpu/handle.h"

namespace spillway::bench {

inline cudaError_t free_on_device(std::byte* memory) { return cudaFree(memory); }
inline cudaError_t free_pinned(std::byte* memory) { return cudaFreeHost(memory); }

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    cuda::check(cudaMalloc(&memory, bytes), "allocate " + std::to_string(bytes) + " bytes of device memory");
    memory_ = Handle(static_cast<std::byte*>(memory));
  }
  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }

 private:
  using Handle = cuda::Handle<std::byte*, free_on_device>;
  std::size_t bytes_;
  Handle memory_;
};

class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    cuda::check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "allocate " + std::to_string(bytes) + " bytes of pinned memory");
    memory_ = Handle(static_cast<std::byte*>(memory));
  }
  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data()), bytes_ / sizeof(T)};
  }

 private:
  using Handle = cuda::Handle<std::byte*, free_pinned>;
  std::size_t bytes_;
  Handle memory_;
};

class CudaStream {
 public:
  CudaStream() {
    cudaStream_t stream = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
    stream_ = Handle(stream);
  }
  cudaStream_t get() const { return stream_.get(); }
  void synchronize() const { cuda::check(cudaStreamSynchronize(get()), "wait for a stream"); }
  void copy(void* to, const void* from, std::size_t bytes) const {
    cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, get()), "copy " + std::to_string(bytes) + " bytes");
  }

 private:
  using Handle = cuda::Handle<cudaStream_t, cudaStreamDestroy>;
  Handle stream_;
};

}  // namespace spillway::bench
