// The libaio engine: Linux's older asynchronous I/O, which containers usually allow. Asynchronous only on
// files opened with O_DIRECT; elsewhere submit() blocks.
#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <ctime>
#include <vector>

#include <fmt/format.h>
#include <libaio.h>
#include <poll.h>

#include "errno_text.h"
#include "io_engine_entry.h"
#include "spillway/error.h"
#include "wake_event.h"

namespace spillway {

namespace {

class Context {
 public:
  explicit Context(int depth) {
    const int error = -io_setup(depth, &context_);
    if (error != 0) throw_setup_error(error);
  }
  ~Context() { io_destroy(context_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  io_context_t get() const { return context_; }

  [[noreturn]] static void throw_setup_error(int error) {
    const char* advice = error == EAGAIN   ? "the sysctl fs.aio-max-nr is reached; raise it"
                         : error == ENOSYS ? "this kernel has no asynchronous I/O, or a seccomp filter hides it"
                         : error == EPERM  ? "a seccomp filter forbids it; allow io_setup, io_submit, io_getevents and io_destroy"
                                           : "the kernel refused a context";
    throw IoError(fmt::format("[nvme] make I/O engine libaio: {}; {}, or use another I/O engine", errno_text(error), advice));
  }

 private:
  io_context_t context_ = nullptr;
};

class LibaioEngine final : public IoEngine {
 public:
  // The kernel's queue has room for one more: the wait for a wake().
  explicit LibaioEngine(int depth) : context_(depth + 1), depth_(depth), requests_(static_cast<std::size_t>(depth)) {
    for (iocb& request : requests_) free_.push_back(&request);
    queued_.reserve(requests_.size());
    refused_.reserve(requests_.size());
    events_.resize(requests_.size());
    wait_for_wake();
    check_reaping();
  }

  ~LibaioEngine() override {
    std::array<IoResult, 16> results;
    try {
      while (in_flight() > 0) reap(results, 1);
    } catch (const IoError&) {
      // io_destroy() waits for what the kernel still has.
    }
  }

  std::string_view name() const override { return libaio_entry.name; }
  int depth() const override { return depth_; }

  bool queue(const IoRequest& request) override {
    assert(request.bytes >= 0);
    if (in_flight() == depth_) return false;
    iocb* slot = free_.back();
    free_.pop_back();
    const auto bytes = static_cast<std::size_t>(std::min(request.bytes, max_transfer_bytes));
    if (request.op == IoOp::read) {
      io_prep_pread(slot, request.fd, request.data, bytes, request.offset);
    } else {
      io_prep_pwrite(slot, request.fd, request.data, bytes, request.offset);
    }
    slot->data = reinterpret_cast<void*>(request.tag);
    queued_.push_back(slot);
    return true;
  }

  void submit() override {
    int refusals = 0;
    while (!queued_.empty()) {
      const int taken = io_submit(context_.get(), static_cast<long>(queued_.size()), queued_.data());
      if (taken > 0) {
        queued_.erase(queued_.begin(), queued_.begin() + taken);
        refusals = 0;
      } else if (taken == 0 || taken == -EAGAIN) {
        // Short of kernel memory. Requests in flight free some as they end.
        if (++refusals > kMaxRefusals) throw_failure("submit", EAGAIN);
        const timespec one_ms = {0, 1'000'000};
        nanosleep(&one_ms, nullptr);
      } else if (taken != -EINTR) {
        // The kernel names no request but means the first: the ones before it were counted as taken.
        refused_.push_back({reinterpret_cast<std::uint64_t>(queued_.front()->data), 0, -taken});
        free_.push_back(queued_.front());
        queued_.erase(queued_.begin());
      }
    }
  }

  int reap(std::span<IoResult> results, int min_results) override {
    const int wanted = std::min({min_results, static_cast<int>(results.size()), in_flight()});
    if (wanted > 0) submit();
    const int room = static_cast<int>(std::min(results.size(), events_.size()));
    int count = 0;
    while (count < room && !refused_.empty()) {
      results[static_cast<std::size_t>(count++)] = refused_.back();
      refused_.pop_back();
    }
    while (count < room) {
      const bool must_wait = count < wanted && !asked_to_wake_.load();
      const int got = get_events(room - count, must_wait);
      for (const io_event& event : std::span(events_).first(static_cast<std::size_t>(got))) {
        if (event.obj == &wake_request_) {
          wait_for_wake();
        } else {
          results[static_cast<std::size_t>(count++)] = take(event);
        }
      }
      if (!must_wait) break;
    }
    if (count < wanted) asked_to_wake_ = false;
    return count;
  }

  void wake() override {
    asked_to_wake_ = true;
    wake_event_.signal();
  }

 private:
  // Has the kernel report a wake() among the results. One that cannot (before Linux 4.18) has reap() look every millisecond.
  void wait_for_wake() {
    wake_event_.clear();
    io_prep_poll(&wake_request_, wake_event_.fd(), POLLIN);
    iocb* request = &wake_request_;
    int result = 0;
    while ((result = io_submit(context_.get(), 1, &request)) == -EINTR) {
    }
    if (result == -EPERM || result == -ENOSYS) Context::throw_setup_error(-result);
    wake_is_reported_ = result == 1;
  }

  // A filter that lets a context be made may forbid to ask it for results: better known at the start. With no time at all the
  // library would not ask the kernel.
  void check_reaping() {
    timespec limit = {0, 1};
    const int result = io_getevents(context_.get(), 0, 1, events_.data(), &limit);
    if (result == -EPERM || result == -ENOSYS) Context::throw_setup_error(-result);
  }

  // Stores events; waits for at least one, if told to, but no longer than it may take to notice a wake().
  int get_events(int room, bool wait) {
    timespec limit = {0, wait ? 1'000'000 : 0};
    const int got = io_getevents(context_.get(), wait ? 1 : 0, room, events_.data(), wait && wake_is_reported_ ? nullptr : &limit);
    if (got == -EINTR) return 0;
    if (got < 0) throw_failure("wait", -got);
    return got;
  }

  int in_flight() const { return depth_ - static_cast<int>(free_.size() - refused_.size()); }

  IoResult take(const io_event& event) {
    free_.push_back(event.obj);
    const auto result = static_cast<std::int64_t>(event.res);  // a negative errno in an unsigned field
    return {reinterpret_cast<std::uint64_t>(event.data), std::max<std::int64_t>(result, 0),
            static_cast<int>(std::max<std::int64_t>(-result, 0))};
  }

  [[noreturn]] void throw_failure(const char* what, int error) const {
    throw IoError(fmt::format("[nvme] libaio {}: {}; {} requests in flight; see the kernel log", what,
                              errno_text(error), in_flight()));
  }

  static constexpr int kMaxRefusals = 10'000;

  WakeEvent wake_event_;
  iocb wake_request_{};
  bool wake_is_reported_ = false;
  std::atomic<bool> asked_to_wake_{false};
  Context context_;  // after what it refers to
  int depth_;
  std::vector<iocb> requests_;  // one slot per request in flight
  std::vector<iocb*> free_;
  std::vector<iocb*> queued_;   // not yet submitted
  std::vector<IoResult> refused_;  // at submission, not yet reaped; their slots are free again
  std::vector<io_event> events_;
};

std::unique_ptr<IoEngine> make(const IoEngineOptions& options) { return std::make_unique<LibaioEngine>(options.depth); }

}  // namespace

const IoEngineEntry libaio_entry = {"libaio", "libaio-dev", false, make};

}  // namespace spillway
