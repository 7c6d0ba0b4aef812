// What a device's streams, events and operations share.
#pragma once

#include <string>

#include "gpu/event_clock.h"
#include "gpu/failure.h"
#include "gpu/memory_map.h"

namespace spillway::cuda {

class Context {
 public:
  // Opens the device and makes it the calling thread's. Throws DeviceError.
  explicit Context(int index);

  // Before any call of CUDA: makes this the calling thread's device. Throws the device's failure if it had one.
  void enter();
  // The same for what has to be done on a failed device too: giving things back.
  void enter_to_release() const noexcept;

  const int index;
  const std::string name;  // "cuda:0"
  Failure failure;
  MemoryMap memory;
  EventClock clock;
};

}  // namespace spillway::cuda
