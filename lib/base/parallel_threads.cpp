// parallel_for on plain threads, for ThreadSanitizer builds: every synchronisation is one it sees.
#include "base/parallel.h"

#include <sched.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace spillway {

namespace {

std::atomic<int> thread_count{0};

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count > 0 ? count : 1;
}

void set_parallel_threads(int threads) { thread_count = threads > 0 ? threads : available_cores(); }

int parallel_threads() {
  const int threads = thread_count;
  return threads > 0 ? threads : available_cores();
}

int parallel_nodes() { return 1; }

void parallel_for(std::int64_t pieces, PieceFunction f) {
  const std::int64_t workers = pieces < parallel_threads() ? pieces : parallel_threads();
  if (workers <= 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) f(piece);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (std::int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) f(piece);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::int64_t i = 1; i < workers; ++i) threads.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace spillway
