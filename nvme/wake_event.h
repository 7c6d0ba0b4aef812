// What wakes a thread that waits for an engine of the kernel's: an eventfd that the engine waits for beside its requests.
#pragma once

#include <cstdint>

namespace spillway {

class WakeEvent {
 public:
  WakeEvent();  // throws IoError
  ~WakeEvent();
  WakeEvent(const WakeEvent&) = delete;
  WakeEvent& operator=(const WakeEvent&) = delete;

  int fd() const { return fd_; }

  // Thread-safe.
  void signal();

  // Takes what has been signalled so far; does not block.
  void clear();

 private:
  int fd_;
};

}  // namespace spillway
