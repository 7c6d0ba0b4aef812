#include "io_uring_ring.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <span>

#include <fmt/format.h>

#include "base/log.h"
#include "errno_text.h"
#include "io_uring_setup_error.h"
#include "spillway/error.h"

namespace spillway {

namespace {

// Set-up flags, rich to plain. A kernel answers EINVAL to a flag it does not know.
//
// Those that tie a ring to one thread come first, and only if that was promised: a ring that is used or closed by another
// thread is answered EEXIST while the kernel still owns the buffers. With them what ends a request runs when that thread
// asks for results, instead of interrupting whoever is on the processor.
constexpr std::array<unsigned, 5> kRungs = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,  // Linux 6.1
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,   // Linux 6.0
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,                                // Linux 5.19
    IORING_SETUP_SUBMIT_ALL,                                                                                        // Linux 5.18
    0,
};
constexpr std::size_t kRungsOfOneThread = 2;

// With submission polling it is the kernel's thread that requests end on: flags that spare the owner make no sense.
constexpr std::array<unsigned, 3> kPolledSubmissionRungs = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_SUBMIT_ALL,  // Linux 6.0
    IORING_SETUP_SUBMIT_ALL,                               // Linux 5.18
    0,
};
constexpr std::size_t kPolledSubmissionRungsOfOneThread = 1;

// The kernel's thread looks for submissions so long before it sleeps: longer than the gaps within a step's transfers, short
// enough to leave the processor alone between them.
constexpr unsigned kSubmissionIdleMs = 20;

std::span<const unsigned> ladder(const IoUringUse& use) {
  if (use.submission_polling) return std::span(kPolledSubmissionRungs).subspan(use.one_thread ? 0 : kPolledSubmissionRungsOfOneThread);
  return std::span(kRungs).subspan(use.one_thread ? 0 : kRungsOfOneThread);
}

// Where the ladder held last time, or the errno with which it never will: so that a process climbs it down once.
struct KnownRung {
  std::atomic<std::size_t> rung{0};
  std::atomic<int> refusal{0};
};

KnownRung& known(const IoUringUse& use) {
  static std::array<KnownRung, 8> of_all;
  return of_all[(use.one_thread ? 1u : 0u) | (use.submission_polling ? 2u : 0u) | (use.completion_polling ? 4u : 0u)];
}

// Rings are opened and closed one at a time. The kernel may map a ring where it has just unmapped another thread's, so
// the last access to the old one does come before the first to the new one; but liburing maps with system calls of its
// own, past the C library, and ThreadSanitizer sees neither the unmapping nor that order and reports a race. The lock says
// the same where it can be seen. It is held for two calls in an engine's life.
std::mutex mapping;

int open_ring(io_uring* ring, const IoUringUse& use, unsigned flags) {
  io_uring_params params{};
  params.flags = flags;
  if (use.submission_polling) {
    params.flags |= IORING_SETUP_SQPOLL;
    params.sq_thread_idle = kSubmissionIdleMs;
  }
  if (use.completion_polling) params.flags |= IORING_SETUP_IOPOLL;
  const std::lock_guard lock(mapping);
  return -io_uring_queue_init_params(static_cast<unsigned>(use.entries), ring, &params);
}

void close_ring(io_uring* ring) {
  const std::lock_guard lock(mapping);
  io_uring_queue_exit(ring);
}

// Returns 0, or the errno of the last rung tried.
int open_by_ladder(io_uring* ring, const IoUringUse& use) {
  KnownRung& known_rung = known(use);
  int error = known_rung.refusal;
  if (error != 0) return error;
  const std::span<const unsigned> rungs = ladder(use);
  for (std::size_t rung = known_rung.rung; rung < rungs.size(); ++rung) {
    error = open_ring(ring, use, rungs[rung]);
    if (error == 0) known_rung.rung = rung;
    if (error != EINVAL) break;
  }
  // Without polling every engine asks again: what forbids it may be lifted, and is told each time.
  const bool polling = use.submission_polling || use.completion_polling;
  if (polling && (error == EINVAL || error == EPERM)) known_rung.refusal = error;
  return error;
}

void warn_of_submission_polling(int error) {
  static std::atomic_flag warned;
  if (warned.test_and_set()) return;
  log_warning(fmt::format("[nvme] io_uring: submission polling: {}; going without, which costs a system call per batch of requests; "
                          "before Linux 5.13 it needs CAP_SYS_NICE, and a limit on processes (ulimit -u) counts the kernel's thread",
                          errno_text(error)));
}

}  // namespace

IoUringRing::IoUringRing(const IoUringUse& use) {
  int error = open_by_ladder(&ring_, use);
  if (error != 0 && use.submission_polling) {
    const int refusal = error;
    IoUringUse without = use;
    without.submission_polling = false;
    error = open_by_ladder(&ring_, without);
    if (error == 0) warn_of_submission_polling(refusal);
  }
  if (error != 0) throw IoError(io_uring_setup_error(error, io_uring_disabled_sysctl()));
  check_operations();
}

IoUringRing::~IoUringRing() { close_ring(&ring_); }

// Linux 5.1 to 5.5 make a ring but know no plain read and write.
void IoUringRing::check_operations() {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  const bool usable = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) && io_uring_opcode_supported(probe, IORING_OP_WRITE);
  io_uring_free_probe(probe);
  if (usable) return;
  close_ring(&ring_);
  throw IoError(io_uring_setup_error(EINVAL, io_uring_disabled_sysctl()));
}

}  // namespace spillway
