// One NCCL communicator that never waits inside NCCL: it is non-blocking, what it starts is asked for, and it can be
// aborted from another thread, which ends a stream that is stuck in a collective because another rank is no more.
#pragma once

#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include <nccl.h>

#include "gpu/context.h"
#include "gpu/nccl_library.h"
#include "spillway/communicator.h"

namespace spillway::cuda {

class NcclWatch;

class NcclLink {
 public:
  // All ranks at once. They find each other by the id that one of them made. The calling thread's device is the rank's.
  // Throws CommError.
  NcclLink(NcclWatch& watch, const ncclUniqueId& id, int rank, int ranks);
  // When all of its work is done.
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  // All ranks at once; a colour is not negative, or NCCL_SPLIT_NOCOLOR: then nothing.
  std::unique_ptr<NcclLink> split(int color, int rank);

  // start(comm) enqueues collectives on a stream of `context`; this returns when all of them are enqueued. After an abort
  // its reason is thrown instead. `what`: "all_gather".
  template <class Start>
  void enqueue(Context& context, const char* what, Start&& start) {
    begin(what, [&] {
      add(context);
      return start(comm_);
    });
  }
  // The same for a stream that belongs to no Context.
  template <class Start>
  void enqueue(const char* what, Start&& start) {
    begin(what, [&] { return start(comm_); });
  }

  // For the watch, from its thread.
  ncclResult_t async_error();
  void abort(const std::exception_ptr& reason);

 private:
  NcclLink(NcclWatch& watch, ncclComm_t comm);

  // Beyond what ends the world: other ranks may take their time.
  static constexpr double kForever = std::numeric_limits<double>::infinity();

  template <class Start>
  void begin(const char* what, Start&& start, double timeout_s = kForever) {
    ncclResult_t result;
    {
      const std::lock_guard lock(mutex_);
      refuse_if_aborted();
      result = start();
    }
    await(what, result, timeout_s);
  }
  // Until everything that was begun is enqueued.
  void await(const char* what, ncclResult_t result, double timeout_s = kForever);
  void settle(const char* what, ncclResult_t result, double timeout_s);
  void finish();
  void refuse_if_aborted() const;
  void add(Context& context);

  NcclWatch& watch_;
  std::mutex mutex_;  // nobody is inside NCCL with a communicator that is being aborted
  ncclComm_t comm_ = nullptr;
  std::exception_ptr aborted_;
  std::exception_ptr given_up_;  // why a call was not waited for to its end
  std::vector<Context*> contexts_;  // whose streams have had work of it
};

// Calls of NCCL between group_start and group_end, of which the first error counts. Unfinished work is no error.
template <class Calls>
ncclResult_t in_group(Calls&& calls) {
  ncclResult_t result = nccl().group_start();
  if (result != ncclSuccess) return result;
  result = calls();
  const ncclResult_t end = nccl().group_end();
  return result == ncclSuccess || result == ncclInProgress ? end : result;
}

}  // namespace spillway::cuda
