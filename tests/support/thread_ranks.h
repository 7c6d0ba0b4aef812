// Ranks that are threads of this process and only exchange control messages: all that the writer of checkpoints needs.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "spillway/communicator.h"
#include "spillway/error.h"

namespace spillway::testing {

struct ThreadGroup {
  explicit ThreadGroup(int size) : said(static_cast<std::size_t>(size)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> said, heard;
  std::size_t arrived = 0;
  std::int64_t round = 0;
  bool lost = false;  // a rank has died
};

class ThreadRank : public Communicator {
 public:
  ThreadRank(std::shared_ptr<ThreadGroup> group, int rank) : group_(std::move(group)), rank_(rank) {}

  std::string_view name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->said.size()); }

  std::vector<std::string> exchange(const std::string& mine) override {
    std::unique_lock lock(group_->mutex);
    const std::int64_t round = group_->round;
    group_->said[static_cast<std::size_t>(rank_)] = mine;
    if (++group_->arrived == group_->said.size()) {
      group_->heard = group_->said;
      group_->arrived = 0;
      ++group_->round;
      group_->changed.notify_all();
    }
    group_->changed.wait(lock, [&] { return group_->round != round || group_->lost; });
    if (group_->round == round) throw CommError("a rank is lost");
    return group_->heard;
  }
  void barrier() override { exchange(std::string()); }

  std::unique_ptr<Communicator> split(int) override { throw std::logic_error("control messages only"); }
  void all_gather(Stream&, std::byte*, std::span<const Part>) override { throw std::logic_error("control messages only"); }
  void all_to_all(Stream&, const std::byte*, std::span<const Part>, std::byte*, std::span<const Part>) override {
    throw std::logic_error("control messages only");
  }
  void exchange(std::span<const std::byte>, std::span<std::byte>) override { throw std::logic_error("texts only"); }
  std::int64_t sent_bytes() const override { return 0; }

 private:
  std::shared_ptr<ThreadGroup> group_;
  int rank_;
};

// Runs `rank_main` as every rank at once. A rank that throws is lost to the others; the first exception is re-thrown.
inline void run_ranks(int size, const std::function<void(std::unique_ptr<Communicator>)>& rank_main) {
  const auto group = std::make_shared<ThreadGroup>(size);
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        rank_main(std::make_unique<ThreadRank>(group, rank));
      } catch (...) {
        const std::lock_guard lock(group->mutex);
        if (!first) first = std::current_exception();
        group->lost = true;
        group->changed.notify_all();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace spillway::testing
