// The calls with which the I/O engines ask the kernel, for tests that have them fail: a test program that links
// kernel_calls.cpp (and wraps the calls, as tests/meson.build says) sends them through here.
#pragma once

#include <functional>

#include <sys/types.h>

namespace spillway::testing {

// Empty functions leave calls alone. To be set while no engine exists; the functions may be called by any thread.
struct KernelCalls {
  // Before io_uring_submit, io_uring_submit_and_wait and io_submit (of requests, not of the wait for a wake), and before
  // io_getevents: 0 to go on, or the positive errno to fail with.
  std::function<int()> submission = {}, waiting = {};

  // What a request ended with: bytes or a negative errno, and the set-up flags of the ring it ended on (0 elsewhere).
  // Returns what the engine is to see.
  std::function<long(long result, unsigned ring_flags)> result = {};

  // The order in which results of one batch are seen: the place of the next among `left`.
  std::function<std::size_t(std::size_t left)> order = {};

  // Making a ring with these set-up flags, registering memory, registering files: 0 to go on, or the positive errno.
  std::function<int(unsigned ring_flags)> setup = {};
  std::function<int()> memory_registration = {}, file_registration = {};

  // Rings that are to poll for completions do so on any device: they are plain ones that say they poll.
  bool every_device_polls = false;

  static KernelCalls& instance();
};

// Sets them for as long as it lives.
class WithKernelCalls {
 public:
  explicit WithKernelCalls(KernelCalls calls) { KernelCalls::instance() = std::move(calls); }
  ~WithKernelCalls() { KernelCalls::instance() = {}; }
  WithKernelCalls(const WithKernelCalls&) = delete;
  WithKernelCalls& operator=(const WithKernelCalls&) = delete;
};

// A request that reads from this descriptor does not end before release(). Every engine takes it for the file it names,
// although it is a pipe, which some of them could not read like that.
class HeldDescriptor {
 public:
  HeldDescriptor();
  ~HeldDescriptor();
  HeldDescriptor(const HeldDescriptor&) = delete;
  HeldDescriptor& operator=(const HeldDescriptor&) = delete;

  int fd() const { return ends_[0]; }

  // Lets one request end, with one byte.
  void release();

 private:
  int ends_[2];
};

}  // namespace spillway::testing
