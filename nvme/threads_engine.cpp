// The engine that always works: a few threads doing pread and pwrite.
#include <algorithm>
#include <cassert>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <vector>

#include <unistd.h>

#include "io_engine_entry.h"

namespace spillway {

namespace {

constexpr int kMaxThreads = 8;

// A queue in a fixed array: a request in flight allocates nothing.
template <class T>
class FixedQueue {
 public:
  explicit FixedQueue(int capacity) : items_(static_cast<std::size_t>(capacity)) {}

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  void push(const T& item) {
    assert(size_ < items_.size());
    items_[(first_ + size_++) % items_.size()] = item;
  }
  T pop() {
    assert(size_ > 0);
    const T item = items_[first_];
    first_ = (first_ + 1) % items_.size();
    --size_;
    return item;
  }
  void clear() { size_ = 0; }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

IoResult perform(const IoRequest& request) {
  const auto bytes = static_cast<std::size_t>(std::min(request.bytes, IoEngine::max_transfer_bytes));
  for (;;) {
    const ssize_t moved = request.op == IoOp::read ? pread(request.fd, request.data, bytes, request.offset)
                                                   : pwrite(request.fd, request.data, bytes, request.offset);
    if (moved >= 0) return {request.tag, moved, 0};
    if (errno != EINTR) return {request.tag, 0, errno};
  }
}

class ThreadsEngine final : public IoEngine {
 public:
  explicit ThreadsEngine(int depth) : depth_(depth), requests_(depth), results_(depth) {
    // Signals belong to the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (int i = 0; i < std::min(depth, kMaxThreads); ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~ThreadsEngine() override { stop(); }

  std::string_view name() const override { return threads_entry.name; }
  int depth() const override { return depth_; }

  bool queue(const IoRequest& request) override {
    assert(request.bytes >= 0);
    if (in_flight_ == depth_) return false;
    {
      const std::lock_guard lock(mutex_);
      requests_.push(request);
    }
    request_ready_.notify_one();
    ++in_flight_;
    return true;
  }

  void submit() override {}  // queue() has started it

  int reap(std::span<IoResult> results, int min_results) override {
    const auto wanted =
        static_cast<std::size_t>(std::max(0, std::min({min_results, static_cast<int>(results.size()), in_flight_})));
    std::unique_lock lock(mutex_);
    if (results_.size() < wanted) {
      result_ready_.wait(lock, [&] { return results_.size() >= wanted || woken_; });
      woken_ = false;
    }
    const std::size_t count = std::min(results.size(), results_.size());
    for (IoResult& result : results.first(count)) result = results_.pop();
    in_flight_ -= static_cast<int>(count);
    return static_cast<int>(count);
  }

  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    result_ready_.notify_one();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      request_ready_.wait(lock, [&] { return stopping_ || !requests_.empty(); });
      if (stopping_) return;
      const IoRequest request = requests_.pop();
      lock.unlock();
      const IoResult result = perform(request);
      lock.lock();
      results_.push(result);
      result_ready_.notify_one();
    }
  }

  // Requests not yet begun are dropped, begun ones finish.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      requests_.clear();
    }
    request_ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int depth_;
  int in_flight_ = 0;  // queued and not yet reaped; the owner's alone

  std::mutex mutex_;  // guards the queues and the flags
  std::condition_variable request_ready_, result_ready_;
  FixedQueue<IoRequest> requests_;
  FixedQueue<IoResult> results_;
  bool stopping_ = false;
  bool woken_ = false;

  std::vector<std::thread> threads_;
};

std::unique_ptr<IoEngine> make(const IoEngineOptions& options) { return std::make_unique<ThreadsEngine>(options.depth); }

}  // namespace

const IoEngineEntry threads_entry = {"threads", "", false, make};

}  // namespace spillway
