#include "gpu/nccl_watch.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "gpu/nccl_library.h"
#include "gpu/nccl_link.h"
#include "spillway/error.h"

namespace spillway::cuda {

namespace {

constexpr std::chrono::milliseconds kInterval(20);
// A death is seen within milliseconds; the ranks then tell each other.
constexpr int kVerdictLooks = 100;
constexpr std::chrono::milliseconds kVerdictInterval(10);

}  // namespace

NcclWatch::NcclWatch(World& world, double timeout_s) : world_(world), timeout_s_(timeout_s), thread_([this] { run(); }) {}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatch::add(NcclLink& link) {
  const std::lock_guard lock(mutex_);
  if (aborted_) link.abort(aborted_);
  links_.push_back(&link);
}

void NcclWatch::remove(NcclLink& link) {
  const std::lock_guard lock(mutex_);
  links_.erase(std::remove(links_.begin(), links_.end(), &link), links_.end());
}

void NcclWatch::check() {
  world_.check();
  const std::lock_guard lock(mutex_);
  if (aborted_) std::rethrow_exception(aborted_);
}

void NcclWatch::await_verdict() {
  for (int i = 0; i < kVerdictLooks; ++i) {
    world_.check();
    std::this_thread::sleep_for(kVerdictInterval);
  }
}

void NcclWatch::run() {
  pthread_setname_np(pthread_self(), "nccl watch");
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kInterval, [this] { return stopping_; })) {
    lock.unlock();
    try {
      look();
    } catch (const std::exception&) {
      return abort_all(std::current_exception());
    }
    lock.lock();
  }
}

void NcclWatch::look() {
  world_.check();
  ncclResult_t error = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    for (NcclLink* link : links_) {
      const ncclResult_t result = link->async_error();
      if (result != ncclSuccess && result != ncclInProgress) error = result;
    }
  }
  if (error == ncclSuccess) return;
  await_verdict();
  throw CommError(std::string("[nccl] exchange between devices: ") + nccl().error_string(error) +
                  "; NCCL_DEBUG=WARN in the environment says more");
}

void NcclWatch::abort_all(const std::exception_ptr& reason) {
  const std::lock_guard lock(mutex_);
  aborted_ = reason;
  for (NcclLink* link : links_) link->abort(reason);
}

}  // namespace spillway::cuda
