#include "comm/watchdog.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "spillway/error.h"

namespace spillway::comm {

namespace {

// Beats come often, so that what a rank was last heard doing is what it did last; less often where rank 0 has many.
double interval_s(std::size_t ranks, double timeout_s) {
  return std::min(timeout_s / 8, std::clamp(0.005 * static_cast<double>(ranks), 0.05, 0.5));
}

constexpr int kPollMs = 10;
constexpr int kLastLookMs = 500;
// How long a rank that knows of a failure stays for the others to hear of it.
constexpr double kLingerSeconds = 3;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Watchdog::Watchdog(std::vector<ProcessIdentity> members, int rank, double timeout_s, BeatLink& link)
    : rank_(rank),
      interval_s_(interval_s(members.size(), timeout_s)),
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
  if (!has_verdict_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  throw CommError("[comm] " + verdict_);
}

void Watchdog::fail(const std::string& error) {
  std::unique_lock lock(mutex_);
  if (!own_error_) own_error_ = error;
  watch_.wake();
  changed_.wait(lock, [&] { return !verdict_.empty(); });
}

Watchdog::Entry Watchdog::enter() const {
  Entry entry(transport_);
  check();
  return entry;
}

bool Watchdog::leave() {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  watch_.wake();
  // Bounded by the liveness of the others: whoever dies or falls silent makes a verdict.
  changed_.wait(lock, [&] { return all_gone_ || !verdict_.empty(); });
  return verdict_.empty();
}

void Watchdog::run() {
  pthread_setname_np(pthread_self(), "watchdog");
  try {
    while (!closed_) {
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
    const std::string_view verdict = liveness_.verdict().text.view();
    const std::string text = verdict.empty() ? std::string("the watch over the other ranks failed: ") + error.what() : std::string(verdict);
    if (heard_verdict_ == 0) log(LogLevel::error, "[comm] " + text);
    close(text);
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
  if (liveness_.verdict()) hear_verdict(now);
  send_beats(now);

  const bool owes = std::any_of(owed_.begin(), owed_.end(), [](char owed) { return owed != 0; });
  if (liveness_.verdict() && ((liveness_.all_know() && !owes) || now - heard_verdict_ > kLingerSeconds)) {
    close(liveness_.verdict().text.view());
  } else if (liveness_.all_gone() && !owes) {
    const std::lock_guard lock(mutex_);
    all_gone_ = true;
    changed_.notify_all();
  }
}

void Watchdog::hear_verdict(double now) {
  if (heard_verdict_ > 0) return;
  heard_verdict_ = now;
  // At once: the thread that has to end may be deep in its work, and mpirun kills the rest when one rank has died.
  const Verdict& verdict = liveness_.verdict();
  if (verdict.culprit != rank_) log(LogLevel::error, "[comm] " + std::string(verdict.text.view()));
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

void Watchdog::close(std::string_view verdict) {
  closed_ = true;
  const std::lock_guard nobody_inside(transport_);
  const std::lock_guard lock(mutex_);
  verdict_ = verdict;
  has_verdict_.store(true, std::memory_order_release);
  changed_.notify_all();
}

}  // namespace spillway::comm
