#include "cuda_sim/block_runner.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "cuda_sim/sanitizers.h"
#include "cuda_sim/violation.h"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

namespace cuda_sim {

namespace {

constinit thread_local BlockRunner* runner_of_thread = nullptr;
constinit thread_local bool runs_kernel = false;

}  // namespace

void ThreadQueue::push(CudaThread* thread) {
  thread->next = nullptr;
  (head_ == nullptr ? head_ : tail_->next) = thread;
  tail_ = thread;
}

void ThreadQueue::push_front(CudaThread* thread) {
  if (head_ == nullptr) return push(thread);
  thread->next = head_;
  head_ = thread;
}

CudaThread* ThreadQueue::pop() {
  CudaThread* const thread = head_;
  head_ = thread->next;
  return thread;
}

void ThreadQueue::take_all(ThreadQueue& other) {
  if (other.empty()) return;
  (head_ == nullptr ? head_ : tail_->next) = other.head_;
  tail_ = other.tail_;
  other.head_ = nullptr;
}

BlockRunner::BlockRunner() {
  threads_.resize(kMaxBlockThreads);
  order_.resize(kMaxBlockThreads);
  fibers_.reserve(kMaxBlockThreads);
  idle_.reserve(kMaxBlockThreads);
}

BlockRunner::~BlockRunner() = default;

BlockRunner& BlockRunner::of_thread() {
  const Unseen unseen;
  if (runner_of_thread == nullptr) runner_of_thread = new BlockRunner;
  return *runner_of_thread;
}

void BlockRunner::end_of_thread() {
  const Unseen unseen;
  delete std::exchange(runner_of_thread, nullptr);
}

bool BlockRunner::in_kernel() { return runs_kernel; }

BlockRunner& BlockRunner::current(const char* what) {
  if (!runs_kernel) violation("%s outside a kernel", what);
  return *runner_of_thread;
}

void BlockRunner::run(const Grid& grid) {
  grid_ = &grid;
  num_threads_ = grid.block.x * grid.block.y * grid.block.z;
  shuffle_state_ = grid.order_seed;
  gridDim = grid.grid;
  blockDim = grid.block;
  if (grid.racecheck) make_fibers(num_threads_);
  shared_.begin_launch(grid.dynamic_bytes, grid.shared_limit);
  runs_kernel = true;
  for (unsigned z = 0; z < grid.grid.z; ++z) {
    for (unsigned y = 0; y < grid.grid.y; ++y) {
      for (unsigned x = 0; x < grid.grid.x; ++x) run_block({x, y, z});
    }
  }
  runs_kernel = false;
}

void BlockRunner::run_block(uint3 block) {
  blockIdx = block;
  arrange_threads();
  started_ = finished_ = 0;
  shared_.begin_block();
  if (grid_->racecheck) {
    idle_.clear();
    for (unsigned i = num_threads_; i-- > 0;) idle_.push_back(fibers_[i].get());
    tsan_release(&start_token_);
  }
  switch_to(next_fiber());
  if (grid_->racecheck) tsan_acquire(&end_token_);
  shared_.end_block();
}

void BlockRunner::arrange_threads() {
  for (unsigned number = 0; number < num_threads_; ++number) {
    const dim3& size = grid_->block;
    threads_[number] = {.index = {number % size.x, number / size.x % size.y, number / size.x / size.y},
                        .number = number,
                        .finished = false,
                        .waits_at = nullptr,
                        .site = {},
                        .fiber = nullptr,
                        .next = nullptr,
                        .held = nullptr};
  }
  std::iota(order_.begin(), order_.begin() + num_threads_, 0u);
  if (grid_->order == ThreadOrder::reverse) std::reverse(order_.begin(), order_.begin() + num_threads_);
  if (grid_->order == ThreadOrder::shuffled) {
    for (unsigned i = num_threads_; i > 1; --i) {
      shuffle_state_ = shuffle_state_ * 6364136223846793005u + 1442695040888963407u;
      std::swap(order_[i - 1], order_[(shuffle_state_ >> 33) % i]);
    }
  }
}

void BlockRunner::work(void* runner) {
  BlockRunner& self = *static_cast<BlockRunner*>(runner);
  for (;;) {
    do {
      self.run_next_thread();
    } while (self.started_ < self.num_threads_ && !self.grid_->racecheck);
    // In racecheck mode a fiber stands for one thread of a block.
    if (!self.grid_->racecheck) self.idle_.push_back(self.running_);
    self.switch_to(self.next_fiber());
  }
}

void BlockRunner::run_next_thread() {
  CudaThread* const thread = &threads_[order_[started_++]];
  thread->fiber = running_;
  become(thread);
  if (grid_->racecheck) tsan_acquire(&start_token_);
  grid_->thread(grid_->arguments);
  finish_thread();
}

void BlockRunner::finish_thread() {
  CudaThread& thread = *current_;
  if (num_at_barrier_ > 0) {
    violation("thread %u of a block returned while others wait in __syncthreads at %s:%d", thread.number, barrier_site_.file,
              barrier_site_.line);
  }
  if (const WarpGroup* group = warps_.expecting(thread.number / 32, thread.number % 32)) {
    violation("thread %u of a block returned while its warp waits for it in %s at %s:%d", thread.number, group->operation,
              group->site.file, group->site.line);
  }
  if (thread.held != nullptr) --thread.held->readers;
  thread.finished = true;
  ++finished_;
  if (grid_->racecheck) tsan_release(&end_token_);
}

void BlockRunner::become(CudaThread* thread) {
  current_ = thread;
  threadIdx = thread->index;
}

Fiber* BlockRunner::next_fiber() {
  if (!ready_.empty()) {
    CudaThread* const thread = ready_.pop();
    become(thread);
    return thread->fiber;
  }
  if (started_ < num_threads_) return idle_fiber();
  if (finished_ == num_threads_) return &os_thread_;
  report_deadlock();
}

Fiber* BlockRunner::idle_fiber() {
  if (idle_.empty()) make_fibers(static_cast<unsigned>(fibers_.size()) + 1);
  Fiber* const fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

void BlockRunner::make_fibers(unsigned count) {
  const Unseen unseen;
  while (fibers_.size() < count) {
    fibers_.push_back(std::make_unique<Fiber>(&BlockRunner::work, this));
    idle_.push_back(fibers_.back().get());
  }
  if (!grid_->racecheck) return;
  for (const std::unique_ptr<Fiber>& fiber : fibers_) fiber->take_identity();
}

void BlockRunner::switch_to(Fiber* fiber) {
  if (fiber == running_) return;
  Fiber* const from = std::exchange(running_, fiber);
  fiber->switch_from(*from, grid_->racecheck);
}

void BlockRunner::wait(const char* what, Site site) {
  current_->waits_at = what;
  current_->site = site;
  switch_to(next_fiber());
  current_->waits_at = nullptr;
}

void BlockRunner::sync_threads(Site site) {
  CudaThread& thread = *current_;
  if (finished_ > 0) {
    violation("thread %u of a block waits in __syncthreads at %s:%d, which %u threads that returned will not reach", thread.number,
              site.file, site.line, finished_);
  }
  if (num_at_barrier_ == 0) {
    barrier_site_ = site;
  } else if (site.line != barrier_site_.line || std::strcmp(site.file, barrier_site_.file) != 0) {
    violation("divergent __syncthreads: thread %u of a block is at %s:%d, others wait at %s:%d", thread.number, site.file, site.line,
              barrier_site_.file, barrier_site_.line);
  }
  char* const token = &barrier_tokens_[barriers_ % 2];
  if (grid_->racecheck) tsan_release(token);
  at_barrier_.push(&thread);
  if (++num_at_barrier_ == num_threads_) {
    num_at_barrier_ = 0;
    ++barriers_;
    ready_.take_all(at_barrier_);
  }
  wait("__syncthreads", site);
  if (grid_->racecheck) tsan_acquire(token);
}

WarpValues BlockRunner::warp_exchange(unsigned mask, const void* value, std::size_t bytes, const char* operation, Site site,
                                      bool orders_memory) {
  CudaThread& thread = *current_;
  const unsigned warp = thread.number / 32, lane = thread.number % 32;
  if ((mask >> lane & 1u) == 0) {
    violation("%s at %s:%d: lane %u is not in its own mask %08x", operation, site.file, site.line, lane, mask);
  }
  CudaThread* const lanes = &threads_[warp * 32];
  for (unsigned other = 0; other < 32; ++other) {
    if ((mask >> other & 1u) != 0 && lanes[other].finished) {
      violation("%s at %s:%d: mask %08x names lane %u, which has returned", operation, site.file, site.line, mask, other);
    }
  }
  if (thread.held != nullptr) --thread.held->readers;
  WarpGroup& group = warps_.join(warp, lane, mask, bytes, operation, site);
  {
    const Unseen unseen;
    std::memcpy(group.values + lane * kWarpValueBytes, value, bytes);
  }
  thread.held = &group;
  if (grid_->racecheck && orders_memory) tsan_release(&group);
  if (group.arrived == mask) {
    group.arrived = 0;
    group.readers = std::popcount(mask);
    // A warp goes ahead as far as it can: what others still read it overwrites, unless a barrier keeps it from that.
    for (unsigned other = 32; other-- > 0;) {
      if ((mask >> other & 1u) != 0) ready_.push_front(&lanes[other]);
    }
  }
  wait(operation, site);
  if (grid_->racecheck && orders_memory) tsan_acquire(&group);
  return {group.values};
}

void BlockRunner::report_deadlock() const {
  std::string text;
  for (unsigned number = 0; number < num_threads_; ++number) {
    const CudaThread& thread = threads_[number];
    if (thread.finished) continue;
    // Threads in a row at one place are told once.
    if (number > 0 && !threads_[number - 1].finished && threads_[number - 1].site.line == thread.site.line) continue;
    text += "\n  from thread " + std::to_string(number) + ": in " + thread.waits_at + " at " + thread.site.file + ":" +
            std::to_string(thread.site.line);
  }
  violation("deadlock of a block, %u of its %u threads returned:%s", finished_, num_threads_, text.c_str());
}

void sync_threads(Site site) { BlockRunner::current("__syncthreads").sync_threads(site); }

WarpValues warp_exchange(unsigned mask, const void* value, std::size_t bytes, const char* operation, Site site, bool orders_memory) {
  return BlockRunner::current(operation).warp_exchange(mask, value, bytes, operation, site, orders_memory);
}

unsigned lane() { return BlockRunner::current("a lane's index").lane(); }

void* shared_array(const void* identity, std::size_t bytes, std::size_t alignment, Site site) {
  return BlockRunner::current("shared memory").shared().array(identity, bytes, alignment, site);
}

void* shared_dynamic() { return BlockRunner::current("shared memory").shared().dynamic(); }

std::size_t shared_dynamic_bytes() { return BlockRunner::current("shared memory").shared().dynamic_bytes(); }

}  // namespace cuda_sim
