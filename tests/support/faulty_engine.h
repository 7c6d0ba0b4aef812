// An I/O engine that wraps another and misbehaves on a fixed-seed schedule, but never lies: a result that
// claims n bytes has moved at least n.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "spillway/io_engine.h"

namespace spillway::testing {

struct FaultSchedule {
  unsigned seed = 1;
  double short_rate = 0.0;   // share of requests that move only a part, down to nothing
  double retry_rate = 0.0;   // share that end with EINTR or EAGAIN
  bool reorder = false;      // results are held back and shuffled
  int fail_at = -1;          // the request with this number, from 0, ends with fail_error,
  int fail_error = 0;
  const std::atomic<bool>* armed = nullptr;  // counted from when this is true, if given
  bool stuck = false;        // no request ever moves anything
};

class FaultyEngine final : public IoEngine {
 public:
  FaultyEngine(std::unique_ptr<IoEngine> inner, const FaultSchedule& schedule)
      : inner_(std::move(inner)), schedule_(schedule), random_(schedule.seed) {}

  std::string_view name() const override { return inner_->name(); }
  int depth() const override { return inner_->depth(); }

  bool queue(const IoRequest& request) override {
    if (in_flight_ == depth()) return false;
    ++in_flight_;
    if (schedule_.stuck) {
      held_.push_back({request.tag, 0, 0});
    } else if (requests_ == schedule_.fail_at && (schedule_.armed == nullptr || *schedule_.armed)) {
      held_.push_back({request.tag, 0, schedule_.fail_error});
    } else if (chance(schedule_.retry_rate)) {
      held_.push_back({request.tag, 0, chance(0.5) ? EINTR : EAGAIN});
    } else if (chance(schedule_.short_rate)) {
      queue_short(request);
    } else {
      inner_->queue(request);
      ++inside_;
    }
    if (schedule_.armed == nullptr || *schedule_.armed) ++requests_;
    return true;
  }

  void submit() override { inner_->submit(); }
  void wake() override { inner_->wake(); }

  int reap(std::span<IoResult> results, int min_results) override {
    const int wanted = std::min({min_results, static_cast<int>(results.size()), in_flight_});
    // Held-back results wait for others to overtake them; whatever is inside comes in first.
    const int missing = schedule_.reorder ? std::min(wanted, inside_) : wanted - static_cast<int>(held_.size());
    take_inner(std::max(0, missing));
    if (schedule_.reorder) std::ranges::shuffle(held_, random_);
    std::size_t count = std::min(held_.size(), results.size());
    if (schedule_.reorder && count > static_cast<std::size_t>(wanted)) {
      count = std::uniform_int_distribution<std::size_t>(static_cast<std::size_t>(wanted), count)(random_);
    }
    std::copy_n(held_.begin(), count, results.begin());
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
    in_flight_ -= static_cast<int>(count);
    return static_cast<int>(count);
  }

 private:
  bool chance(double rate) { return std::bernoulli_distribution(rate)(random_); }

  // Moves the first pages and owns up to a random number of bytes within them.
  void queue_short(IoRequest request) {
    constexpr std::int64_t page = 4096;
    const std::int64_t claimed = std::uniform_int_distribution<std::int64_t>(1, request.bytes - 1)(random_);
    request.bytes = (claimed + page - 1) / page * page;
    claims_.push_back({request.tag, claimed, 0});
    inner_->queue(request);
    ++inside_;
  }

  void take_inner(int min_results) {
    std::vector<IoResult> results(static_cast<std::size_t>(depth()));
    const int count = inner_->reap(results, min_results);
    inside_ -= count;
    for (IoResult result : std::span(results).first(static_cast<std::size_t>(count))) {
      const auto claim = std::ranges::find(claims_, result.tag, &IoResult::tag);
      if (claim != claims_.end()) {
        result.bytes = std::min(result.bytes, claim->bytes);
        claims_.erase(claim);
      }
      held_.push_back(result);
    }
  }

  std::unique_ptr<IoEngine> inner_;
  FaultSchedule schedule_;
  std::mt19937 random_;
  std::vector<IoResult> claims_;  // of short requests inside
  std::vector<IoResult> held_;    // ready to be returned
  int requests_ = 0;
  int in_flight_ = 0;  // here, held back or inside
  int inside_ = 0;
};

}  // namespace spillway::testing
