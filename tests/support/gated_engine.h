// An I/O engine that does nothing until it is let: the order in which blocks reach it can be looked at. What it is let do it
// does in that order, by pread and pwrite.
#pragma once

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include "spillway/error.h"
#include "spillway/io_engine.h"

namespace spillway::testing {

// What a test holds in its hand: one for all engines made with it. Open until closed.
class Gate {
 public:
  void close() { set([this] { open_ = false; }); }
  void open() { set([this] { open_ = true; }); }
  void allow(int requests) { set([this, requests] { permits_ += requests; }); }
  // From now on engines answer with this error instead.
  void break_engines(const std::string& text) { set([this, text] { broken_ = text; }); }

  // Requests queued since close() or forget(), in order, when there are at least so many.
  std::vector<IoRequest> queued(std::size_t at_least) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queued_.size() >= at_least; });
    return queued_;
  }
  // The same once an engine waits for what is in flight, so that it has been given all that it will be.
  std::vector<IoRequest> queued_when_waiting(std::size_t in_flight) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_with_ == in_flight; });
    return queued_;
  }
  void forget() { set([this] { queued_.clear(); submits_ = 0; }); }
  int submits_with_requests() {
    const std::lock_guard lock(mutex_);
    return submits_;
  }

 private:
  friend class GatedEngine;

  template <class Change>
  void set(Change change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int permits_ = 0;
  std::string broken_;
  std::vector<IoRequest> queued_;
  std::size_t waiting_with_ = 0;  // requests in flight of an engine that waits
  int submits_ = 0;
};

class GatedEngine final : public IoEngine {
 public:
  GatedEngine(Gate& gate, int depth) : gate_(gate), depth_(depth) {}

  std::string_view name() const override { return "gated"; }
  int depth() const override { return depth_; }

  bool queue(const IoRequest& request) override {
    if (static_cast<int>(in_flight_.size()) == depth_) return false;
    in_flight_.push_back(request);
    ++unsubmitted_;
    gate_.set([&] { gate_.queued_.push_back(request); });
    return true;
  }

  void submit() override {
    const bool any = std::exchange(unsubmitted_, 0) > 0;
    gate_.set([&] { gate_.submits_ += any ? 1 : 0; });
  }

  int reap(std::span<IoResult> results, int min_results) override {
    std::unique_lock lock(gate_.mutex_);
    const auto may_go = [&] { return gate_.open_ || gate_.permits_ > 0; };
    if (min_results > 0 && !in_flight_.empty()) {
      gate_.waiting_with_ = in_flight_.size();
      gate_.changed_.notify_all();
      gate_.changed_.wait(lock, [&] { return may_go() || woken_ || !gate_.broken_.empty(); });
      gate_.waiting_with_ = 0;
      woken_ = false;
    }
    if (!gate_.broken_.empty()) throw IoError(gate_.broken_);
    int count = 0;
    for (; count < static_cast<int>(results.size()) && !in_flight_.empty() && may_go(); ++count) {
      if (!gate_.open_) --gate_.permits_;
      results[static_cast<std::size_t>(count)] = perform(in_flight_.front());
      in_flight_.pop_front();
    }
    return count;
  }

  void wake() override { gate_.set([this] { woken_ = true; }); }

 private:
  static IoResult perform(const IoRequest& request) {
    const auto bytes = static_cast<std::size_t>(request.bytes);
    const ssize_t moved = request.op == IoOp::read ? pread(request.fd, request.data, bytes, request.offset)
                                                   : pwrite(request.fd, request.data, bytes, request.offset);
    return {request.tag, std::max<ssize_t>(moved, 0), moved < 0 ? errno : 0};
  }

  Gate& gate_;
  int depth_;
  int unsubmitted_ = 0;
  bool woken_ = false;  // under the gate's lock
  std::deque<IoRequest> in_flight_;
};

}  // namespace spillway::testing
