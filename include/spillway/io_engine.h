// Asynchronous file I/O: queue requests, submit them, reap their results. One engine belongs to one
// thread at a time; unless it is promised to one (IoEngineOptions::one_thread) it may be made on one, used on another
// and destroyed on a third, if the caller orders these. Only wake() may be called by any thread.
// Implementations: io_uring, libaio, threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

enum class IoOp : std::uint8_t { read, write };

inline constexpr std::uint64_t kNoTag = ~std::uint64_t{0};

// The buffer belongs to the request from queue() until its result has been reaped. For files opened
// with O_DIRECT, offset, address and length are multiples of the file's alignment (4096 always serves).
struct IoRequest {
  IoOp op;
  int fd;
  std::int64_t offset;
  std::byte* data;
  std::int64_t bytes;   // more than IoEngine::max_transfer_bytes is moved in part: a short transfer
  std::uint64_t tag;    // returned with the result; not kNoTag
};

struct IoResult {
  std::uint64_t tag;
  std::int64_t bytes;  // moved; may be fewer than asked (a short transfer is no error)
  int error;           // 0 or a positive errno
};

class IoEngine {
 public:
  static constexpr std::int64_t max_transfer_bytes = 1 << 30;

  // Waits for the requests in flight, so that no buffer is touched afterwards.
  virtual ~IoEngine() = default;

  virtual std::string_view name() const = 0;  // "io_uring"
  virtual int depth() const = 0;              // most requests in flight at a time

  // Takes a request; it may start at once or at submit(). Returns false, and takes nothing, when
  // depth() requests are in flight.
  virtual bool queue(const IoRequest& request) = 0;

  // Starts everything queued.
  virtual void submit() = 0;

  // Stores results of finished requests, in any order; returns how many. Blocks until at least
  // `min_results` are there (0: polls); never waits for more than are in flight or fit in `results`.
  // Submits what is queued if it has to wait. EINTR and EAGAIN of the engine's own calls are handled
  // inside; those of a request are its result. Throws IoError only if the engine itself fails.
  virtual int reap(std::span<IoResult> results, int min_results) = 0;

  // Makes a reap() that waits, or else the next one that would have to, return with what there is. For any thread, as long
  // as the engine lives. Best effort where the kernel offers no way to be woken (polled rings): then that reap() returns
  // with the next result.
  virtual void wake() = 0;
};

struct IoEngineOptions {
  std::string name = "auto";  // auto, io_uring, libaio, threads
  int depth = 32;             // 1 to 4096
  // Memory that most requests will lie in, which outlives the engine and stays mapped as it is. io_uring has the kernel
  // pin it once, and not again for every request; where the kernel will not, a warning says so, once. Costs start-up time
  // that grows with the memory.
  std::span<std::byte> memory = {};
  // Descriptors that most requests will name, which outlive the engine: io_uring has them looked up once.
  std::vector<int> files = {};
  // The engine is made, used and destroyed by one thread, wake() aside: io_uring then takes the flags that tie a ring to it.
  bool one_thread = false;
  // On request, io_uring only (other engines warn and go without): a thread of the kernel takes submissions off the ring;
  // completions are polled for instead of interrupting. Where the kernel or the device will not, a warning says so and the
  // engine goes on without, with the same results.
  bool submission_polling = false;
  bool completion_polling = false;
};

// "auto" takes the first engine that works here, and warns once if it is not the best one built in; an
// engine asked for by name works or throws IoError naming the sysctl, limit or package to change.
std::unique_ptr<IoEngine> make_io_engine(const IoEngineOptions& options);

// Engines built in, best first, for --version and error texts.
std::span<const std::string_view> io_engine_names();

// The first engine of io_engine_names() that works on this machine now; empty if none does.
std::string_view usable_io_engine();

}  // namespace spillway
