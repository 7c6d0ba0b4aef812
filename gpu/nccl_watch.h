// The thread that ends NCCL's work when it cannot end by itself: NCCL sees neither a rank that has failed nor one that is
// silent, and what waits for it on a device waits for ever.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "spillway/communicator.h"

namespace spillway::cuda {

class NcclLink;

// Thread-safe.
class NcclWatch {
 public:
  // Starts the thread. The world outlives it.
  NcclWatch(World& world, double timeout_s);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // Links are aborted when the world ends, or NCCL reports an error of one of them.
  void add(NcclLink& link);
  void remove(NcclLink& link);

  // Throws as World::check(), and after an error of NCCL.
  void check();
  double timeout_s() const { return timeout_s_; }
  // After an error of NCCL: gives the world a moment to find its cause, and throws it.
  void await_verdict();

 private:
  void run();
  void look();
  void abort_all(const std::exception_ptr& reason);

  World& world_;
  const double timeout_s_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<NcclLink*> links_;
  std::exception_ptr aborted_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace spillway::cuda
