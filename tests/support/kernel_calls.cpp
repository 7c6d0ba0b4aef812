#include "support/kernel_calls.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include <unistd.h>

#if SPILLWAY_LIBAIO
#include <libaio.h>
#endif
#if SPILLWAY_IO_URING
#include <liburing.h>
#endif

namespace spillway::testing {

namespace {

std::atomic<int> held_fd{-1};

#if SPILLWAY_LIBAIO
// libaio would read a pipe within io_submit(): such requests are kept until there is something to read.
struct HeldRequests {
  std::mutex mutex;
  std::vector<std::pair<io_context_t, iocb*>> requests;
};

HeldRequests& held() {
  static HeldRequests requests;
  return requests;
}
#endif

template <class Function>
int refusal(const Function& function) {
  return function ? function() : 0;
}

long seen(long result, unsigned ring_flags) {
  const KernelCalls& calls = KernelCalls::instance();
  return calls.result ? calls.result(result, ring_flags) : result;
}

template <class Item>
void reorder(std::vector<Item>& items) {
  const KernelCalls& calls = KernelCalls::instance();
  if (!calls.order) return;
  for (std::size_t i = 0; i < items.size(); ++i) std::swap(items[i], items[i + calls.order(items.size() - i)]);
}

ssize_t moved(ssize_t result) {
  const long value = seen(result < 0 ? -errno : result, 0);
  if (value < 0) errno = static_cast<int>(-value);
  return value < 0 ? -1 : value;
}

}  // namespace

KernelCalls& KernelCalls::instance() {
  static KernelCalls calls;
  return calls;
}

}  // namespace spillway::testing

using namespace spillway::testing;

extern "C" {

// Waits are cut short: how long an engine is patient is counted in tries.
int __wrap_nanosleep(const timespec*, timespec*) { return 0; }

ssize_t __real_pread64(int fd, void* data, size_t bytes, off_t offset);
ssize_t __wrap_pread64(int fd, void* data, size_t bytes, off_t offset) {
  return moved(fd == held_fd ? read(fd, data, 1) : __real_pread64(fd, data, bytes, offset));
}

ssize_t __real_pwrite64(int fd, const void* data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void* data, size_t bytes, off_t offset) { return moved(__real_pwrite64(fd, data, bytes, offset)); }

#if SPILLWAY_LIBAIO
int __real_io_submit(io_context_t context, long count, iocb** requests);
int __wrap_io_submit(io_context_t context, long count, iocb** requests) {
  if (requests[0]->aio_lio_opcode == IO_CMD_POLL) return __real_io_submit(context, count, requests);
  if (const int error = refusal(KernelCalls::instance().submission)) return -error;
  if (requests[0]->aio_fildes != held_fd.load()) {
    const auto next_held = std::find_if(requests, requests + count, [](const iocb* request) { return request->aio_fildes == held_fd.load(); });
    return __real_io_submit(context, next_held - requests, requests);
  }
  requests[0]->u.c.nbytes = 1;
  const std::lock_guard lock(held().mutex);
  held().requests.emplace_back(context, requests[0]);
  return 1;
}

int __real_io_getevents(io_context_t context, long least, long most, io_event* events, timespec* limit);
int __wrap_io_getevents(io_context_t context, long least, long most, io_event* events, timespec* limit) {
  if (const int error = refusal(KernelCalls::instance().waiting)) return -error;
  const int count = __real_io_getevents(context, least, most, events, limit);
  std::vector<io_event> batch(events, events + std::max(count, 0));
  for (io_event& event : batch) {
    if (event.obj->aio_lio_opcode != IO_CMD_POLL) event.res = static_cast<unsigned long>(seen(static_cast<long>(event.res), 0));
  }
  reorder(batch);
  std::ranges::copy(batch, events);
  return count;
}
#endif

#if SPILLWAY_IO_URING
int __real_io_uring_queue_init_params(unsigned entries, io_uring* ring, io_uring_params* params);
int __wrap_io_uring_queue_init_params(unsigned entries, io_uring* ring, io_uring_params* params) {
  const KernelCalls& calls = KernelCalls::instance();
  if (const int error = calls.setup ? calls.setup(params->flags) : 0) return -error;
  const unsigned pretended = calls.every_device_polls ? params->flags & IORING_SETUP_IOPOLL : 0;
  params->flags &= ~pretended;
  const int result = __real_io_uring_queue_init_params(entries, ring, params);
  ring->flags |= pretended;
  return result;
}

int __real_io_uring_register_buffers(io_uring* ring, const iovec* pieces, unsigned count);
int __wrap_io_uring_register_buffers(io_uring* ring, const iovec* pieces, unsigned count) {
  const int error = refusal(KernelCalls::instance().memory_registration);
  return error != 0 ? -error : __real_io_uring_register_buffers(ring, pieces, count);
}

int __real_io_uring_register_files(io_uring* ring, const int* files, unsigned count);
int __wrap_io_uring_register_files(io_uring* ring, const int* files, unsigned count) {
  const int error = refusal(KernelCalls::instance().file_registration);
  return error != 0 ? -error : __real_io_uring_register_files(ring, files, count);
}

int __real_io_uring_submit(io_uring* ring);
int __wrap_io_uring_submit(io_uring* ring) {
  const int error = refusal(KernelCalls::instance().submission);
  return error != 0 ? -error : __real_io_uring_submit(ring);
}

int __real_io_uring_submit_and_wait(io_uring* ring, unsigned least);
int __wrap_io_uring_submit_and_wait(io_uring* ring, unsigned least) {
  int error = refusal(KernelCalls::instance().submission);
  if (error == 0) error = refusal(KernelCalls::instance().waiting);
  return error != 0 ? -error : __real_io_uring_submit_and_wait(ring, least);
}

// The results lie in memory that the kernel shares with the program, which may write there, too.
unsigned __real_io_uring_peek_batch_cqe(io_uring* ring, io_uring_cqe** cqes, unsigned most);
unsigned __wrap_io_uring_peek_batch_cqe(io_uring* ring, io_uring_cqe** cqes, unsigned most) {
  const unsigned count = __real_io_uring_peek_batch_cqe(ring, cqes, most);
  std::vector<std::pair<__u64, __s32>> batch;
  for (unsigned i = 0; i < count; ++i) {
    const bool is_wake = cqes[i]->user_data == ~__u64{0};
    batch.emplace_back(cqes[i]->user_data, is_wake ? cqes[i]->res : static_cast<__s32>(seen(cqes[i]->res, ring->flags)));
  }
  reorder(batch);
  for (unsigned i = 0; i < count; ++i) std::tie(cqes[i]->user_data, cqes[i]->res) = batch[i];
  return count;
}
#endif

}  // extern "C"

namespace spillway::testing {

HeldDescriptor::HeldDescriptor() {
  if (pipe(ends_) != 0) throw std::runtime_error("cannot make a pipe");
  held_fd = ends_[0];
}

HeldDescriptor::~HeldDescriptor() {
  held_fd = -1;
  close(ends_[0]);
  close(ends_[1]);
}

void HeldDescriptor::release() {
  const char byte = 'x';
  if (write(ends_[1], &byte, 1) != 1) throw std::runtime_error("cannot write to a pipe");
#if SPILLWAY_LIBAIO
  const std::lock_guard lock(held().mutex);
  if (held().requests.empty()) return;
  auto [context, request] = held().requests.back();
  held().requests.pop_back();
  if (__real_io_submit(context, 1, &request) != 1) throw std::runtime_error("cannot submit a held request");
#endif
}

}  // namespace spillway::testing
