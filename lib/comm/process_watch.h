// Sees processes of this machine end within milliseconds, however they end.
#pragma once

#include <poll.h>

#include <span>
#include <vector>

namespace spillway::comm {

class ProcessWatch {
 public:
  ProcessWatch();
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  // Watches a process under a number of the caller's. Where the kernel cannot (before Linux 5.3, or forbidden), it is
  // not watched.
  void add(int id, int pid);

  // Sleeps until a watched process ends, wake() is called, or the time is over; the ids of those that have ended,
  // each once, valid until the next call. One thread. Allocates nothing.
  std::span<const int> wait(int timeout_ms);

  // From any thread.
  void wake();

 private:
  // The first is the one that wakes; the others are processes, whose ids are in the same place.
  std::vector<pollfd> descriptors_;
  std::vector<int> ids_;
  std::vector<int> ended_, just_ended_;
};

}  // namespace spillway::comm
