// parallel_for on oneTBB. On a machine of several NUMA nodes each has an arena whose threads are bound to it.
#include "base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <vector>

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>

namespace spillway {

namespace {

// oneTBB opens tbbbind with RTLD_DEEPBIND, on which AddressSanitizer ends the process.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kMayAskForNodes = false;
#else
constexpr bool kMayAskForNodes = true;
#endif

// Pieces [next, end) that wait for a thread; on a cache line of their own.
struct alignas(64) Queue {
  std::atomic<std::int64_t> next{0};
  std::int64_t end = 0;

  void drain(PieceFunction f) {
    for (std::int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < end;) f(piece);
  }
};

// Calls body(0) .. body(workers - 1) side by side. One task per worker rather than per piece: few tasks, so the
// scheduler's own pools reach a steady state and a training step allocates nothing.
template <class Body>
void run_workers(std::int64_t workers, const Body& body) {
  tbb::parallel_for(std::int64_t{0}, workers, body, tbb::simple_partitioner{});
}

struct Node {
  int threads;
  tbb::task_arena arena;  // its threads run on the node's cores and nowhere else
};

class Pool {
 public:
  Pool() { divide(available_cores()); }

  void resize(int threads) {
    limit_ = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads));
    divide(threads);
  }

  int threads() const { return threads_; }
  int nodes() const { return std::max(1, static_cast<int>(nodes_.size())); }

  void run(std::int64_t pieces, PieceFunction f) {
    const std::int64_t workers = std::min<std::int64_t>(pieces, threads_);
    if (workers <= 1) {
      for (std::int64_t piece = 0; piece < pieces; ++piece) f(piece);
    } else if (nodes_.empty()) {
      Queue queue;
      queue.end = pieces;
      run_workers(workers, [&](std::int64_t) { queue.drain(f); });
    } else {
      run_on_nodes(pieces, f);
    }
  }

 private:
  // One node, or no library that knows of nodes (oneTBB's tbbbind): no arenas, for there is nothing to choose.
  void divide(int threads) {
    threads_ = threads;
    nodes_.clear();
    if (!kMayAskForNodes) return;
    const std::vector<tbb::numa_node_id> ids = tbb::info::numa_nodes();
    if (ids.size() < 2 || static_cast<std::size_t>(threads) < ids.size()) return;
    int cores = 0;
    for (const tbb::numa_node_id id : ids) cores += tbb::info::default_concurrency(id);
    int cores_before = 0;
    for (const tbb::numa_node_id id : ids) {
      const int first = cores_before * threads / cores;
      cores_before += tbb::info::default_concurrency(id);
      const int count = std::max(1, cores_before * threads / cores - first);
      // The calling thread has a place in each arena: in the first it is one of the node's threads, to the others it comes
      // when the first has nothing left to do.
      const int places = nodes_.empty() ? count : count + 1;
      nodes_.emplace_back(count, tbb::task_arena{tbb::task_arena::constraints{id, places}, 1});
    }
  }

  // Every node has a contiguous stretch of the pieces, in proportion to its threads; who is done helps the next node.
  void run_on_nodes(std::int64_t pieces, PieceFunction f) {
    std::vector<Queue> queues(nodes_.size());
    std::int64_t total = 0, threads_before = 0, first = 0;
    for (const Node& node : nodes_) total += node.threads;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      threads_before += nodes_[n].threads;
      queues[n].next.store(first, std::memory_order_relaxed);
      queues[n].end = first = pieces * threads_before / total;
    }
    const auto work = [&](std::size_t n) {
      run_workers(nodes_[n].threads, [&](std::int64_t) {
        for (std::size_t i = 0; i < queues.size(); ++i) queues[(n + i) % queues.size()].drain(f);
      });
    };
    const auto groups = std::make_unique<tbb::task_group[]>(nodes_.size());  // of this call: others may be under way
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      nodes_[n].arena.execute([&] { groups[n].run([&, n] { work(n); }); });
    }
    std::exception_ptr failure;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      try {
        nodes_[n].arena.execute([&] { groups[n].wait(); });
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

  int threads_ = 1;
  std::deque<Node> nodes_;
  std::unique_ptr<tbb::global_control> limit_;
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

void set_parallel_threads(int threads) { pool().resize(threads > 0 ? threads : available_cores()); }

int parallel_threads() { return pool().threads(); }

int parallel_nodes() { return pool().nodes(); }

void parallel_for(std::int64_t pieces, PieceFunction f) { pool().run(pieces, f); }

}  // namespace spillway
