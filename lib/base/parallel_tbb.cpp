#include "base/parallel.h"

#include <sched.h>

#include <atomic>
#include <memory>

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

namespace spillway {

namespace {

struct Pool {
  int threads = available_cores();
  std::unique_ptr<tbb::global_control> limit;
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count > 0 ? count : 1;
}

void set_parallel_threads(int threads) {
  Pool& p = pool();
  p.threads = threads > 0 ? threads : available_cores();
  // One more than asked: the calling lanes are threads of their own and take part.
  p.limit = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism,
                                                  static_cast<std::size_t>(p.threads));
}

int parallel_threads() { return pool().threads; }

void parallel_for(std::int64_t pieces, PieceFunction f) {
  const std::int64_t workers = pieces < pool().threads ? pieces : pool().threads;
  if (workers <= 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) f(piece);
    return;
  }
  // One task per worker, pieces handed out by a counter: few tasks, so the scheduler's own pools
  // reach a steady state and a training step allocates nothing.
  std::atomic<std::int64_t> next{0};
  tbb::parallel_for(
      std::int64_t{0}, workers,
      [&](std::int64_t) {
        for (std::int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) f(piece);
      },
      tbb::simple_partitioner{});
}

}  // namespace spillway
