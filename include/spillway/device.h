// The device contract: memory, streams, events, copies. Implemented by lib/host (the CPU as a device,
// the embedded default) and by gpu/ (CUDA).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "spillway/byte_range.h"
#include "spillway/dtype.h"

namespace spillway {

class Ops;

// A point in a stream's work. Re-recordable; the last record counts.
// Thread-safe: any thread may synchronise; one thread at a time may record.
class Event {
 public:
  virtual ~Event() = default;

  // Blocks the calling thread until the work recorded before the event has finished. Returns at once
  // if the event was never recorded. Throws DeviceError (or the error of the failed work) if that
  // work failed.
  virtual void synchronize() = 0;

  // Whether synchronize() would return (or throw) at once.
  virtual bool finished() const = 0;

  // Nanoseconds at which the recorded work finished, on the clock of Device::now_ns().
  // Valid only after synchronize().
  virtual std::int64_t time_ns() const = 0;
};

// A function and its arguments, to be called once. Stored in place, so that enqueuing it allocates nothing.
class HostCall {
 public:
  template <class F>
    requires(std::is_trivially_copyable_v<F> && sizeof(F) <= 128)
  HostCall(F function) : call_([](const std::byte* stored) { (*reinterpret_cast<const F*>(stored))(); }) {  // NOLINT: implicit on purpose
    new (stored_) F(function);
  }

  void operator()() const { call_(stored_); }

 private:
  alignas(std::max_align_t) std::byte stored_[128];
  void (*call_)(const std::byte*);
};

// An in-order queue of asynchronous work. Work of different streams is unordered unless wait() orders
// it. One thread at a time may enqueue. Nothing here blocks the caller except synchronize().
class Stream {
 public:
  virtual ~Stream() = default;

  // Copies `bytes` from src to dst once earlier work of this stream has finished. Either side may be
  // arena memory of the device or pinned host memory; both stay untouched by the caller until the
  // copy has finished. The ranges do not overlap.
  virtual void copy(void* dst, const void* src, std::int64_t bytes) = 0;

  // Calls a function on a thread of the host once earlier work of this stream has finished; later work waits for
  // it. It must not use the device. What it throws becomes the error of the stream's work.
  virtual void call(const HostCall& function) = 0;

  // Marks the current end of this stream's work.
  virtual void record(Event& event) = 0;

  // Later work of this stream starts only when the work recorded in `event` has finished.
  // The event has to be recorded before this call: waiting on an unrecorded event waits for nothing.
  virtual void wait(Event& event) = 0;

  // Blocks until all work enqueued so far has finished; throws the first error of that work.
  virtual void synchronize() = 0;

  // What is enqueued between the two is shown under "operation object" by a profiler of the device that is watching; else
  // nothing happens. Called by the thread that enqueues. See NamedRange.
  virtual void begin_range(std::string_view /*operation*/, std::string_view /*object*/) {}
  virtual void end_range() {}
};

// A range of a stream for the time it lives.
class NamedRange {
 public:
  NamedRange(Stream& stream, std::string_view operation, std::string_view object) : stream_(stream) { stream_.begin_range(operation, object); }
  ~NamedRange() { stream_.end_range(); }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;

 private:
  Stream& stream_;
};

// How busy a device is, by its driver's own account.
struct DeviceUse {
  double utilization = 0.0;      // part of the driver's last sample period (up to a second) in which a kernel ran, 0 to 1
  std::int64_t used_bytes = 0;   // of its memory, by all processes and the driver
};

// One device and its memory. Created by make_host_device() or make_cuda_device().
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0;  // "host", "cuda:0"

  // Bytes allocate_arena() can have now, less what the device's libraries will still need; nothing if the arena comes
  // out of host memory.
  virtual std::optional<std::int64_t> free_memory() const = 0;

  // The device arena: `bytes` of device memory, allocated once, owned by the device, freed with it.
  // Every page is present when the call returns. Throws MemoryError.
  virtual std::byte* allocate_arena(std::int64_t bytes) = 0;

  // The pinned host arena: page-aligned, present, and usable by copy() without staging. Allocated
  // once, owned by the device. `stretches`: what one parallel_for at a time works through from end to end; on a machine
  // of several NUMA nodes each stretch is laid where the threads are that will get to it. Throws MemoryError.
  virtual std::byte* allocate_pinned(std::int64_t bytes, std::span<const ByteRange> stretches = {}) = 0;

  virtual std::unique_ptr<Stream> make_stream(std::string_view name) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;

  // The kernels, for weights and activations of `dtype`. Borrows the device.
  virtual std::unique_ptr<Ops> make_ops(DType dtype) = 0;

  // Monotonic clock shared with Event::time_ns().
  virtual std::int64_t now_ns() const = 0;

  // Nothing where nobody keeps the account: the host device, a machine without NVML. Takes some microseconds to a
  // millisecond. Thread-safe.
  virtual std::optional<DeviceUse> use() const { return std::nullopt; }
};

struct HostDeviceOptions {
  int threads = 0;  // worker threads of the kernels; 0: one per core of the affinity mask
  // Before each piece of work a stream sleeps a pseudo-random 0 to this many microseconds, so that an
  // ordering that rests on luck shows. Tests only; 0 in production.
  int chaos_max_delay_us = 0;
  std::uint64_t chaos_seed = 0;
};

// The CPU as a device. Streams are threads; a missing wait() is a real data race.
std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options);

// The CUDA device `index`: its streams are CUDA streams, its pinned arena is registered with CUDA. Work that fails
// is a DeviceError at the next call or wait, and from then on at every one: a CUDA context does not recover. Throws
// DeviceError that says what is missing when this build or this machine has none.
std::unique_ptr<Device> make_cuda_device(int index);

// How many there are; 0 where why_no_cuda_device() says why.
int cuda_device_count();

// Empty if make_cuda_device() can work here; otherwise the reason, as a sentence.
std::string why_no_cuda_device();

// A CUDA device as `spillway doctor` shows it.
struct CudaDeviceInfo {
  int index = 0;
  std::string name;                // "NVIDIA H200"
  int compute_major = 0, compute_minor = 0;
  int driver_version = 0;          // CUDA version of the driver, 1000 * major + 10 * minor
  int runtime_version = 0;
  std::int64_t total_bytes = 0, free_bytes = 0;
  int multiprocessors = 0;
  std::string pci_address;         // "0000:17:00.0"
  int numa_node = -1;              // of the PCI slot; -1: unknown
  std::vector<int> peers;          // devices it reaches directly
  double h2d_bytes_per_s = 0.0, d2h_bytes_per_s = 0.0;  // measured, each way alone
  double both_ways_bytes_per_s = 0.0;                   // measured, both at once, sum
  std::string error;               // why it cannot be used; empty: it can
};

// Every CUDA device of the machine; measures each one's link, which takes a moment. Empty where why_no_cuda_device() says
// why. Throws DeviceError.
std::vector<CudaDeviceInfo> cuda_devices();

}  // namespace spillway
