#include "comm/watchdog.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "spillway/error.h"

namespace spillway::comm {

namespace {

using namespace std::chrono_literals;

constexpr double kLongestIntervalSeconds = 0.25;
constexpr int kPollMs = 10;
constexpr int kLastLookMs = 500;
// How long a rank that ends after a failure stays for the others to hear of it.
constexpr auto kLinger = 3s;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Watchdog::Watchdog(std::vector<ProcessIdentity> members, int rank, double timeout_s, BeatLink& link)
    : rank_(rank),
      interval_s_(std::min(kLongestIntervalSeconds, timeout_s / 8)),
      link_(link),
      liveness_(members, rank, timeout_s, now_s()),
      owed_(members.size(), 0) {
  for (int r = 0; r < static_cast<int>(members.size()); ++r) {
    const ProcessIdentity& member = members[static_cast<std::size_t>(r)];
    if (r != rank && member.shares_pids(members[static_cast<std::size_t>(rank)])) watch_.add(r, member.pid);
  }
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  watch_.wake();
  thread_.join();
}

void Watchdog::note_step(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

void Watchdog::note_operation(std::string_view operation, std::string_view object) {
  const std::lock_guard lock(mutex_);
  operation_ = operation;
  object_ = object;
}

void Watchdog::check() const {
  if (!has_verdict()) return;
  const std::lock_guard lock(mutex_);
  throw CommError("[comm] " + verdict_);
}

void Watchdog::fail(const std::string& error) {
  std::unique_lock lock(mutex_);
  if (!own_error_) own_error_ = error;
  watch_.wake();
  changed_.wait_for(lock, kLinger, [&] { return all_know_; });
}

bool Watchdog::leave() {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  watch_.wake();
  // Bounded by the liveness of the others: whoever dies or falls silent makes a verdict.
  changed_.wait(lock, [&] { return all_gone_ || !verdict_.empty(); });
  if (verdict_.empty()) return true;
  changed_.wait_for(lock, kLinger, [&] { return all_know_; });
  return false;
}

void Watchdog::run() {
  pthread_setname_np(pthread_self(), "watchdog");
  try {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
      }
      turn();
    }
  } catch (const std::exception& error) {
    // Without a link this rank hears nobody: its work ends, and the others find it silent. What broke the link may
    // be the end of a process, which is the better thing to say.
    for (const int r : watch_.wait(kLastLookMs)) liveness_.ended(r);
    publish();
    const std::lock_guard lock(mutex_);
    if (verdict_.empty()) verdict_ = std::string("the watch over the other ranks failed: ") + error.what();
    all_know_ = true;
    has_verdict_.store(true, std::memory_order_release);
    changed_.notify_all();
  }
}

void Watchdog::turn() {
  const std::span<const int> ended = watch_.wait(kPollMs);
  const double now = now_s();
  {
    const std::lock_guard lock(mutex_);
    Status status;
    status.step = step_;
    status.operation.set(operation_);
    status.object.set(object_);
    liveness_.set_status(status);
    if (own_error_) liveness_.failed(*own_error_);
    if (leaving_) liveness_.leave();
  }
  // Before the ends: a process may have said good-bye.
  Beat beat;
  while (const std::optional<int> from = link_.receive(beat)) liveness_.heard(*from, beat, now);
  for (const int r : ended) liveness_.ended(r);
  liveness_.tick(now);
  send_beats(now);
  publish();
}

void Watchdog::send_beats(double now) {
  if (now >= next_beat_ || liveness_.news() != sent_news_) {
    next_beat_ = now + interval_s_;
    sent_news_ = liveness_.news();
    for (const int r : liveness_.partners()) owed_[static_cast<std::size_t>(r)] = 1;
  }
  const Beat beat = liveness_.beat();
  for (const int r : liveness_.partners()) {
    char& owed = owed_[static_cast<std::size_t>(r)];
    if (owed && (!liveness_.expects(r) || link_.send(r, beat))) owed = 0;
  }
}

void Watchdog::publish() {
  const Verdict& verdict = liveness_.verdict();
  const bool owes = std::any_of(owed_.begin(), owed_.end(), [](char owed) { return owed != 0; });
  const std::lock_guard lock(mutex_);
  if (verdict && verdict_.empty()) {
    verdict_ = verdict.text.view();
    has_verdict_.store(true, std::memory_order_release);
    // At once: the thread that has to end may be deep in its work, and mpirun kills the rest when one rank has died.
    if (verdict.culprit != rank_) log(LogLevel::error, "[comm] " + verdict_);
  }
  all_know_ = liveness_.all_know();
  all_gone_ = liveness_.all_gone() && !owes;
  changed_.notify_all();
}

}  // namespace spillway::comm
