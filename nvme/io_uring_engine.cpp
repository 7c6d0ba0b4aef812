// The io_uring engine.
#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <ctime>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <liburing.h>
#include <poll.h>

#include "base/log.h"
#include "errno_text.h"
#include "io_engine_entry.h"
#include "io_uring_registration.h"
#include "io_uring_ring.h"
#include "io_uring_setup_error.h"
#include "spillway/error.h"
#include "wake_event.h"

namespace spillway {

namespace {

// A ring and what is registered with it.
struct Connection {
  Connection(const IoEngineOptions& options, bool completion_polling)
      // Room for one more: the wait for a wake().
      : ring({options.depth + 1, options.one_thread, options.submission_polling, completion_polling}),
        memory(ring.get(), options.memory),
        files(ring.get(), options.files) {}

  IoUringRing ring;
  RegisteredMemory memory;
  RegisteredFiles files;
};

void warn_of_completion_polling(int error) {
  static std::atomic_flag warned;
  if (warned.test_and_set()) return;
  log_warning(fmt::format("[nvme] io_uring: completion polling: {} at a request; going on with interrupts; polling needs O_DIRECT on a file system "
                          "and a device that poll (for NVMe: the kernel parameter nvme.poll_queues)",
                          errno_text(error)));
}

class IoUringEngine final : public IoEngine {
 public:
  explicit IoUringEngine(const IoEngineOptions& options) : options_(options), requests_(static_cast<std::size_t>(options.depth)) {
    for (std::size_t slot = requests_.size(); slot > 0; --slot) free_.push_back(slot - 1);
    finished_.reserve(requests_.size());
    refused_.reserve(requests_.size());
    connect(options.completion_polling);
  }

  ~IoUringEngine() override {
    try {
      while (in_ring_ > 0) {
        enter(1);
        collect();
      }
    } catch (const IoError&) {
      // The ring itself is broken: closing it is all that is left.
    }
  }

  std::string_view name() const override { return io_uring_entry.name; }
  int depth() const override { return options_.depth; }

  bool queue(const IoRequest& request) override {
    assert(request.bytes >= 0 && request.tag != kNoTag);
    if (free_.empty()) return false;
    const std::size_t slot = free_.back();
    free_.pop_back();
    requests_[slot] = request;
    prepare(slot);
    return true;
  }

  void submit() override {
    // With submission polling the kernel's thread takes them in its own time.
    do enter(0);
    while (!connection().ring.polls_submissions() && io_uring_sq_ready(ring()) > 0);
  }

  int reap(std::span<IoResult> results, int min_results) override {
    const int in_flight = static_cast<int>(requests_.size() - free_.size());
    const auto wanted = static_cast<std::size_t>(std::max(0, std::min({min_results, static_cast<int>(results.size()), in_flight})));
    look();
    while (finished_.size() < wanted && !asked_to_wake_.load()) {
      enter(1);
      look();
    }
    if (finished_.size() < wanted) asked_to_wake_ = false;
    const std::size_t count = std::min(finished_.size(), results.size());
    for (std::size_t i = 0; i < count; ++i) {
      const auto [slot, result] = finished_[i];
      results[i] = {requests_[slot].tag, std::max(result, 0), std::max(-result, 0)};
      free_.push_back(slot);
    }
    finished_.erase(finished_.begin(), finished_.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<int>(count);
  }

  void wake() override {
    asked_to_wake_ = true;
    wake_event_.signal();
  }

 private:
  struct Finished {
    std::size_t slot;
    int result;  // bytes, or a negative errno
  };

  Connection& connection() {
    if (!connection_) throw IoError("[nvme] io_uring: there is no ring any more: making one without polling failed before");
    return *connection_;
  }
  io_uring* ring() { return connection().ring.get(); }

  void connect(bool completion_polling) {
    connection_.reset();  // first: both at once may be more than the limit on locked memory
    in_ring_ = 0;
    connection_.emplace(options_, completion_polling);
    wait_for_wake();
    submit();  // a filter that lets a ring be made may forbid to enter it: better known now
  }

  // Puts the request of a slot on the ring.
  void prepare(std::size_t slot) {
    const IoRequest& request = requests_[slot];
    io_uring_sqe* sqe = free_entry();
    const auto bytes = static_cast<unsigned>(std::min(request.bytes, max_transfer_bytes));
    const auto offset = static_cast<std::uint64_t>(request.offset);
    const int piece = connection().memory.piece_of(request.data, bytes), place = connection().files.place_of(request.fd);
    const int fd = place < 0 ? request.fd : place;
    if (request.op == IoOp::read) {
      piece < 0 ? io_uring_prep_read(sqe, fd, request.data, bytes, offset)
                : io_uring_prep_read_fixed(sqe, fd, request.data, bytes, offset, piece);
    } else {
      piece < 0 ? io_uring_prep_write(sqe, fd, request.data, bytes, offset)
                : io_uring_prep_write_fixed(sqe, fd, request.data, bytes, offset, piece);
    }
    if (place >= 0) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    sqe->user_data = slot;
    ++in_ring_;
  }

  // There always is one, for the ring has room for every request: but with submission polling the kernel gives entries back
  // a batch at a time, when results of that batch may have been reaped already.
  io_uring_sqe* free_entry() {
    io_uring_sqe* sqe = io_uring_get_sqe(ring());
    while (sqe == nullptr) {
      enter(0);
      io_uring_sqring_wait(ring());
      sqe = io_uring_get_sqe(ring());
    }
    return sqe;
  }

  // Has the ring report the next wake() as a result of its own, which a polled ring cannot.
  void wait_for_wake() {
    if (connection().ring.polls_completions()) return;
    wake_event_.clear();
    io_uring_sqe* sqe = free_entry();
    io_uring_prep_poll_add(sqe, wake_event_.fd(), POLLIN);
    sqe->user_data = kNoTag;
  }

  // Collects, and does again without polling what was refused because of it.
  void look() {
    collect();
    if (!refused_.empty()) stop_polling();
  }

  // Takes what has ended off the ring.
  void collect() {
    // Nothing ends on a polled ring unless somebody looks.
    if (connection().ring.polls_completions() && in_ring_ > 0) io_uring_get_events(ring());
    std::array<io_uring_cqe*, 64> cqes;
    bool woken = false;
    while (const unsigned ready = io_uring_peek_batch_cqe(ring(), cqes.data(), static_cast<unsigned>(cqes.size()))) {
      for (unsigned i = 0; i < ready; ++i) {
        if (cqes[i]->user_data == kNoTag) {
          woken = true;
        } else {
          take({static_cast<std::size_t>(cqes[i]->user_data), cqes[i]->res});
        }
      }
      io_uring_cq_advance(ring(), ready);
    }
    if (woken) wait_for_wake();
  }

  // On a polled ring these two may mean that polling is what was refused. If they do not, they come again without.
  void take(const Finished& finished) {
    --in_ring_;
    if (connection().ring.polls_completions() && (finished.result == -EOPNOTSUPP || finished.result == -EINVAL)) {
      refused_.push_back(finished);
    } else {
      finished_.push_back(finished);
    }
  }

  void stop_polling() {
    while (in_ring_ > 0) {
      enter(1);
      collect();
    }
    warn_of_completion_polling(-refused_.front().result);
    connect(false);
    for (const Finished& finished : refused_) prepare(finished.slot);
    refused_.clear();
    submit();
  }

  // Submits what is queued and waits for `wait_for` results. May return early; the caller looks again.
  void enter(unsigned wait_for) {
    const int result = wait_for == 0 ? io_uring_submit(ring()) : io_uring_submit_and_wait(ring(), wait_for);
    if (result >= 0) {
      refusals_ = 0;
      return;
    }
    if (result == -EINTR) return;
    // The kernel is short of memory for requests: those in flight will free some.
    if ((result == -EAGAIN || result == -EBUSY) && ++refusals_ < kMaxRefusals) {
      const timespec one_ms = {0, 1'000'000};
      nanosleep(&one_ms, nullptr);
      return;
    }
    if (result == -EPERM || result == -ENOSYS) throw IoError(io_uring_setup_error(-result, io_uring_disabled_sysctl()));
    throw IoError(fmt::format("[nvme] io_uring submit and wait: {}; {} requests in flight; see the kernel log", errno_text(-result), in_ring_));
  }

  static constexpr int kMaxRefusals = 10'000;

  const IoEngineOptions options_;
  std::vector<IoRequest> requests_;  // by slot, which is what the ring knows them by
  std::vector<std::size_t> free_;    // slots
  std::vector<Finished> finished_;   // not yet reaped
  std::vector<Finished> refused_;    // by a polled ring
  int in_ring_ = 0;                  // queued there and not ended
  int refusals_ = 0;                 // by the kernel, in a row
  WakeEvent wake_event_;
  std::atomic<bool> asked_to_wake_{false};
  std::optional<Connection> connection_;  // after what it refers to
};

std::unique_ptr<IoEngine> make(const IoEngineOptions& options) { return std::make_unique<IoUringEngine>(options); }

}  // namespace

const IoEngineEntry io_uring_entry = {"io_uring", "liburing-dev", true, make};

}  // namespace spillway
