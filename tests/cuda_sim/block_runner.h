// Runs the blocks of a launch, one after another, on the calling OS thread. A block's threads are fibers, taken
// lazily: one fiber runs threads in a row until one of them has to wait.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda_sim/cuda_sim.h"
#include "cuda_sim/fiber.h"
#include "cuda_sim/shared_arena.h"
#include "cuda_sim/simt.h"
#include "cuda_sim/warp_groups.h"

namespace cuda_sim {

inline constexpr unsigned kMaxBlockThreads = 1024;

struct Grid {
  dim3 grid, block;
  std::size_t dynamic_bytes = 0;
  std::size_t shared_limit = 0;  // static and dynamic together
  void (*thread)(const void* arguments) = nullptr;
  const void* arguments = nullptr;
  ThreadOrder order = ThreadOrder::forward;
  std::uint64_t order_seed = 0;
  bool racecheck = false;
};

struct CudaThread {
  uint3 index;
  unsigned number;  // in the block, x fastest
  bool finished;
  const char* waits_at;  // null: it does not wait
  Site site;
  Fiber* fiber;
  CudaThread* next;  // in a queue
  WarpGroup* held;   // whose values the thread may still read
};

class ThreadQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  void push(CudaThread* thread);
  void push_front(CudaThread* thread);
  CudaThread* pop();
  void take_all(ThreadQueue& other);

 private:
  CudaThread* head_ = nullptr;
  CudaThread* tail_ = nullptr;
};

class BlockRunner {
 public:
  BlockRunner();
  ~BlockRunner();
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  // The calling OS thread's own, made at the first use and kept until end_of_thread().
  static BlockRunner& of_thread();
  static void end_of_thread();

  // Whose kernel the calling thread is in; a violation if none.
  static BlockRunner& current(const char* what);
  static bool in_kernel();

  void run(const Grid& grid);

  // For the calling CUDA thread:
  void sync_threads(Site site);
  WarpValues warp_exchange(unsigned mask, const void* value, std::size_t bytes, const char* operation, Site site, bool orders_memory);
  unsigned lane() const { return current_->number % 32; }
  SharedArena& shared() { return shared_; }

 private:
  static void work(void* runner);
  void run_block(uint3 block);
  void run_next_thread();
  void finish_thread();
  void become(CudaThread* thread);
  void wait(const char* what, Site site);
  Fiber* next_fiber();
  Fiber* idle_fiber();
  void make_fibers(unsigned count);
  void switch_to(Fiber* fiber);
  void arrange_threads();
  [[noreturn]] void report_deadlock() const;

  const Grid* grid_ = nullptr;
  unsigned num_threads_ = 0;
  SharedArena shared_;
  WarpGroups warps_;

  std::vector<CudaThread> threads_;
  std::vector<unsigned> order_;
  unsigned started_ = 0, finished_ = 0;
  CudaThread* current_ = nullptr;
  ThreadQueue ready_;

  ThreadQueue at_barrier_;
  unsigned num_at_barrier_ = 0;
  Site barrier_site_{};
  unsigned barriers_ = 0;
  // What orders threads in racecheck mode. Two for barriers: no thread is at the next but one while another leaves.
  char start_token_, end_token_, barrier_tokens_[2];

  Fiber os_thread_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* running_ = &os_thread_;
  std::uint64_t shuffle_state_ = 0;
};

}  // namespace cuda_sim
