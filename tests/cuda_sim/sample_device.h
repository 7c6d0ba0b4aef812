// Streams, events and memory for tests of the simulation, on the bare runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace sample {

// For what these tests expect to work.
inline void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::abort();
}

class Stream {
 public:
  Stream() { must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { must(cudaStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void synchronize() const { must(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { must(cudaEventCreateWithFlags(&event_, cudaEventDefault)); }
  ~Event() { must(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

enum class Memory { device, pinned };

template <class T, Memory kMemory>
class Array {
 public:
  explicit Array(std::size_t n) : n_(n) {
    void* p = nullptr;
    must(kMemory == Memory::device ? cudaMalloc(&p, n * sizeof(T)) : cudaHostAlloc(&p, n * sizeof(T), cudaHostAllocDefault));
    data_ = static_cast<T*>(p);
  }
  ~Array() { must(kMemory == Memory::device ? cudaFree(data_) : cudaFreeHost(data_)); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  operator T*() const { return data_; }
  std::size_t bytes() const { return n_ * sizeof(T); }
  std::size_t size() const { return n_; }
  T& operator[](std::size_t i) const
    requires(kMemory == Memory::pinned)
  {
    return data_[i];
  }
  std::span<T> values() const
    requires(kMemory == Memory::pinned)
  {
    return {data_, n_};
  }

 private:
  std::size_t n_;
  T* data_ = nullptr;
};

template <class T>
using Device = Array<T, Memory::device>;
template <class T>
using Pinned = Array<T, Memory::pinned>;

template <class T>
void upload(T* device, const Pinned<T>& from, cudaStream_t stream) {
  must(cudaMemcpyAsync(device, from, from.bytes(), cudaMemcpyHostToDevice, stream));
}

template <class T>
void download(const Pinned<T>& to, const T* device, cudaStream_t stream) {
  must(cudaMemcpyAsync(to, device, to.bytes(), cudaMemcpyDeviceToHost, stream));
}

// Waits for the stream and copies.
template <class T>
std::vector<T> values_of(const Device<T>& device, const Stream& stream) {
  const Pinned<T> host(device.size());
  download(host, static_cast<const T*>(device), stream);
  stream.synchronize();
  return {host.values().begin(), host.values().end()};
}

template <class T>
void set_values(const Device<T>& device, std::span<const T> values, const Stream& stream) {
  const Pinned<T> host(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) host[i] = values[i];
  upload(static_cast<T*>(device), host, stream);
  stream.synchronize();
}

}  // namespace sample
