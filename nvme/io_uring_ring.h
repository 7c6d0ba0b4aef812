// An io_uring instance, made with the richest set-up flags that the kernel takes.
#pragma once

#include <liburing.h>

namespace spillway {

struct IoUringUse {
  int entries;
  bool one_thread = false;          // see IoEngineOptions
  bool submission_polling = false;
  bool completion_polling = false;
};

// Closed with its owner.
class IoUringRing {
 public:
  // Throws IoError. Where the kernel refuses a kind of polling, says so once a process and goes without.
  explicit IoUringRing(const IoUringUse& use);
  ~IoUringRing();
  IoUringRing(const IoUringRing&) = delete;
  IoUringRing& operator=(const IoUringRing&) = delete;

  io_uring* get() { return &ring_; }
  bool polls_submissions() const { return (ring_.flags & IORING_SETUP_SQPOLL) != 0; }
  bool polls_completions() const { return (ring_.flags & IORING_SETUP_IOPOLL) != 0; }

 private:
  void check_operations();

  io_uring ring_{};
};

}  // namespace spillway
