#include "gpu/nccl_link.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "gpu/nccl_watch.h"
#include "spillway/error.h"

namespace spillway::cuda {

namespace {

// Most work is enqueued at once; connections are made within milliseconds.
class Pause {
 public:
  void operator()() {
    if (++pauses_ <= kYields) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  static constexpr int kYields = 20;
  int pauses_ = 0;
};

}  // namespace

NcclLink::NcclLink(NcclWatch& watch, const ncclUniqueId& id, int rank, int ranks) : watch_(watch) {
  contexts_.reserve(4);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;  // groups use the same channels: less device memory, and all are aborted together anyway
  const ncclResult_t result = nccl().init_rank(&comm_, ranks, id, rank, &config);
  watch_.add(*this);
  try {
    await("join the ranks", result);
  } catch (...) {
    watch_.remove(*this);
    abort(std::current_exception());
    throw;
  }
}

NcclLink::NcclLink(NcclWatch& watch, ncclComm_t comm) : watch_(watch), comm_(comm) {
  contexts_.reserve(4);
  watch_.add(*this);
}

NcclLink::~NcclLink() {
  watch_.remove(*this);
  try {
    finish();
  } catch (const Error&) {
    // Whoever works on is told by what comes next.
    abort(std::current_exception());
  }
}

void NcclLink::finish() {
  if (aborted_) return;
  // A call that was given up may still be in progress: nothing but an abort is allowed then.
  if (given_up_) std::rethrow_exception(given_up_);
  // The world may not know yet that this rank ends because it has failed.
  begin("leave a communicator", [this] { return nccl().finalize(comm_); }, watch_.timeout_s());
  const std::lock_guard lock(mutex_);
  if (!aborted_) static_cast<void>(nccl().destroy(comm_));
  comm_ = nullptr;
}

std::unique_ptr<NcclLink> NcclLink::split(int color, int rank) {
  // Filled in when this communicator is ready again. Inherits its configuration.
  ncclComm_t part = nullptr;
  begin("split the ranks", [&] { return nccl().split(comm_, color, rank, &part, nullptr); });
  if (part == nullptr) return nullptr;
  auto link = std::unique_ptr<NcclLink>(new NcclLink(watch_, part));
  link->await("split the ranks", link->async_error());
  return link;
}

void NcclLink::await(const char* what, ncclResult_t result, double timeout_s) {
  try {
    settle(what, result, timeout_s);
  } catch (...) {
    given_up_ = std::current_exception();
    throw;
  }
}

// What NCCL refuses is as a rule the end of another rank, which the world names a moment later.
void NcclLink::settle(const char* what, ncclResult_t result, double timeout_s) {
  const auto start = std::chrono::steady_clock::now();
  Pause pause;
  while (result == ncclInProgress) {
    watch_.check();
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > timeout_s)
      throw CommError(std::string("[nccl] ") + what + ": the other ranks did not come to it in " + std::to_string(timeout_s) + " s");
    pause();
    const std::lock_guard lock(mutex_);
    refuse_if_aborted();
    const ncclResult_t asked = nccl().get_async_error(comm_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return;
  watch_.await_verdict();
  std::string more;
  {
    const std::lock_guard lock(mutex_);
    if (const char* last = aborted_ || comm_ == nullptr ? nullptr : nccl().last_error(comm_); last != nullptr && *last != '\0')
      more = std::string(" (") + last + ")";
  }
  throw CommError(std::string("[nccl] ") + what + ": " + nccl().error_string(result) + more + "; NCCL_DEBUG=WARN in the environment says more");
}

ncclResult_t NcclLink::async_error() {
  const std::lock_guard lock(mutex_);
  if (aborted_) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = nccl().get_async_error(comm_, &result);
  return asked == ncclSuccess ? result : asked;
}

void NcclLink::abort(const std::exception_ptr& reason) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return;
  aborted_ = reason;
  // Before the streams go on: their work was not done, and whoever waits for it is to hear why.
  for (Context* context : contexts_) context->failure.keep(reason);
  if (comm_ != nullptr) static_cast<void>(nccl().abort(comm_));
  comm_ = nullptr;
}

void NcclLink::refuse_if_aborted() const {
  if (aborted_) std::rethrow_exception(aborted_);
}

void NcclLink::add(Context& context) {
  if (std::find(contexts_.begin(), contexts_.end(), &context) == contexts_.end()) contexts_.push_back(&context);
}

}  // namespace spillway::cuda
