// The io_uring engine.
//
// The ring has no IORING_SETUP_SINGLE_ISSUER (and so no DEFER_TASKRUN) on purpose: both tie it to one
// thread, but a channel is made on the main thread, used on a lane's, and after a failure drained by
// whoever destroys it. A tied ring answers the last with EEXIST while the kernel still owns the buffers.
// What they save is per request, and a request here is a block of about 1 MiB.
#include <array>
#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <ctime>
#include <mutex>
#include <vector>

#include <fmt/format.h>
#include <liburing.h>
#include <poll.h>

#include "base/log.h"
#include "base/text.h"
#include "errno_text.h"
#include "io_engine_entry.h"
#include "io_uring_setup_error.h"
#include "spillway/error.h"
#include "wake_event.h"

namespace spillway {

namespace {

// Set-up flags, rich to plain. A kernel answers EINVAL to a flag it does not know.
constexpr std::array<unsigned, 3> kFlagLadder = {
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,  // Linux 5.19
    IORING_SETUP_SUBMIT_ALL,                                                          // Linux 5.18
    0,
};

// Where the ladder held last time, so that a process climbs it down once.
std::atomic<std::size_t> known_rung{0};

// Rings are opened and closed one at a time. The kernel may map a ring where it has just unmapped another thread's, so
// the last access to the old one does come before the first to the new one; but liburing maps with system calls of its
// own, past the C library, and ThreadSanitizer sees neither the unmapping nor that order and reports a race. The lock says
// the same where it can be seen. It is held for two calls in an engine's life.
std::mutex mapping;

int open_ring(io_uring* ring, int depth, unsigned flags) {
  const std::lock_guard lock(mapping);
  return io_uring_queue_init(static_cast<unsigned>(depth), ring, flags);
}

void close_ring(io_uring* ring) {
  const std::lock_guard lock(mapping);
  io_uring_queue_exit(ring);
}

// A ring that is closed with its owner.
class Ring {
 public:
  explicit Ring(int depth) {
    for (std::size_t rung = known_rung.load(std::memory_order_relaxed); rung < kFlagLadder.size(); ++rung) {
      const int error = -open_ring(&ring_, depth, kFlagLadder[rung]);
      if (error == 0) {
        known_rung.store(rung, std::memory_order_relaxed);
        check_operations();
        return;
      }
      if (error != EINVAL || rung + 1 == kFlagLadder.size()) throw_setup_error(error);
    }
  }
  ~Ring() { close_ring(&ring_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  io_uring* get() { return &ring_; }

 private:
  [[noreturn]] static void throw_setup_error(int error) {
    throw IoError(io_uring_setup_error(error, io_uring_disabled_sysctl()));
  }

  // Linux 5.1 to 5.5 make a ring but know no plain read and write.
  void check_operations() {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool usable = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                        io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    if (usable) return;
    close_ring(&ring_);
    throw_setup_error(EINVAL);
  }

  io_uring ring_{};
};

// Memory that a ring has registered, in pieces as large as the kernel takes.
class RegisteredMemory {
 public:
  RegisteredMemory(io_uring* ring, std::span<std::byte> memory) {
    if (memory.empty()) return;
    std::vector<iovec> pieces;
    for (std::size_t offset = 0; offset < memory.size(); offset += kPieceBytes)
      pieces.push_back({memory.data() + offset, std::min(kPieceBytes, memory.size() - offset)});
    const int error = -io_uring_register_buffers(ring, pieces.data(), static_cast<unsigned>(pieces.size()));
    if (error == 0) {
      memory_ = memory;
    } else {
      warn(memory.size(), error);
    }
  }

  // The piece that holds all of these bytes; -1 if none does.
  int piece_of(const std::byte* data, std::int64_t bytes) const {
    if (data < memory_.data() || data + bytes > memory_.data() + memory_.size()) return -1;
    const auto first = static_cast<std::size_t>(data - memory_.data());
    const std::size_t piece = first / kPieceBytes;
    return first + static_cast<std::size_t>(bytes) <= (piece + 1) * kPieceBytes ? static_cast<int>(piece) : -1;
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 30;

  static void warn(std::size_t bytes, int error) {
    static std::atomic_flag warned;
    if (warned.test_and_set()) return;
    log_warning(fmt::format("[nvme] io_uring: register {} of memory: {}; every request pins its pages anew, which costs processor time; "
                            "raise the limit on locked memory (ulimit -l)",
                            human_bytes(static_cast<std::int64_t>(bytes)), errno_text(error)));
  }

  std::span<std::byte> memory_;
};

class IoUringEngine final : public IoEngine {
 public:
  // The ring has room for one more: the wait for a wake().
  explicit IoUringEngine(const IoEngineOptions& options)
      : ring_(options.depth + 1), memory_(ring_.get(), options.memory), depth_(options.depth) {
    wait_for_wake();
  }

  ~IoUringEngine() override {
    std::array<IoResult, 16> results;
    try {
      while (in_flight_ > 0) reap(results, 1);
    } catch (const IoError&) {
      // The ring itself is broken: closing it is all that is left.
    }
  }

  std::string_view name() const override { return io_uring_entry.name; }
  int depth() const override { return depth_; }

  bool queue(const IoRequest& request) override {
    assert(request.bytes >= 0 && request.tag != kNoTag);
    if (in_flight_ == depth_) return false;
    // Never null: unsubmitted requests are at most `depth`, and the ring has more entries.
    io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
    const auto bytes = static_cast<unsigned>(std::min(request.bytes, max_transfer_bytes));
    const auto offset = static_cast<std::uint64_t>(request.offset);
    const int piece = memory_.piece_of(request.data, bytes);
    if (request.op == IoOp::read) {
      piece < 0 ? io_uring_prep_read(sqe, request.fd, request.data, bytes, offset)
                : io_uring_prep_read_fixed(sqe, request.fd, request.data, bytes, offset, piece);
    } else {
      piece < 0 ? io_uring_prep_write(sqe, request.fd, request.data, bytes, offset)
                : io_uring_prep_write_fixed(sqe, request.fd, request.data, bytes, offset, piece);
    }
    sqe->user_data = request.tag;
    ++in_flight_;
    return true;
  }

  void submit() override {
    while (io_uring_sq_ready(ring_.get()) > 0) enter(0);
  }

  int reap(std::span<IoResult> results, int min_results) override {
    const int wanted = std::min({min_results, static_cast<int>(results.size()), in_flight_});
    int count = take_finished(results);
    while (count < wanted && !asked_to_wake_.load()) {
      enter(1);
      count += take_finished(results.subspan(static_cast<std::size_t>(count)));
    }
    if (count < wanted) asked_to_wake_ = false;
    return count;
  }

  void wake() override {
    asked_to_wake_ = true;
    wake_event_.signal();
  }

 private:
  int take_finished(std::span<IoResult> results) {
    std::size_t count = 0;
    std::array<io_uring_cqe*, 64> cqes;
    while (count < results.size()) {
      const auto room = static_cast<unsigned>(std::min(cqes.size(), results.size() - count));
      const unsigned ready = io_uring_peek_batch_cqe(ring_.get(), cqes.data(), room);
      if (ready == 0) break;
      bool woken = false;
      for (unsigned i = 0; i < ready; ++i) {
        const int result = cqes[i]->res;
        if (cqes[i]->user_data == kNoTag) {
          woken = true;
        } else {
          results[count++] = {cqes[i]->user_data, std::max(result, 0), std::max(-result, 0)};
        }
      }
      io_uring_cq_advance(ring_.get(), ready);
      if (woken) wait_for_wake();
    }
    in_flight_ -= static_cast<int>(count);
    return static_cast<int>(count);
  }

  // Has the ring report the next wake() as a result of its own.
  void wait_for_wake() {
    wake_event_.clear();
    io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
    io_uring_prep_poll_add(sqe, wake_event_.fd(), POLLIN);
    sqe->user_data = kNoTag;
  }

  // Submits what is queued and waits for `wait_for` results. May return early; the caller looks again.
  void enter(unsigned wait_for) {
    const int result = wait_for == 0 ? io_uring_submit(ring_.get()) : io_uring_submit_and_wait(ring_.get(), wait_for);
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
    throw IoError(fmt::format("[nvme] io_uring submit and wait: {}; {} requests in flight; see the kernel log",
                              errno_text(-result), in_flight_));
  }

  static constexpr int kMaxRefusals = 10'000;

  WakeEvent wake_event_;
  std::atomic<bool> asked_to_wake_{false};
  Ring ring_;
  RegisteredMemory memory_;
  int depth_;
  int in_flight_ = 0;  // queued and not yet reaped
  int refusals_ = 0;   // by the kernel, in a row
};

std::unique_ptr<IoEngine> make(const IoEngineOptions& options) { return std::make_unique<IoUringEngine>(options); }

}  // namespace

const IoEngineEntry io_uring_entry = {"io_uring", "liburing-dev", make};

}  // namespace spillway
