#include "comm/liveness.h"

#include <fmt/format.h>

#include <algorithm>

namespace spillway::comm {

namespace {

// With rank 0 gone nobody counts who knows. Everybody else sees that, or is told, and this is time enough for
// the telling.
constexpr double kSpreadSeconds = 0.15;

}  // namespace

std::string where(const Status& status) {
  std::string text = status.step < 0 ? "the start" : fmt::format("step {}", status.step);
  if (!status.operation.empty()) text += fmt::format(" in {}", status.operation.view());
  if (!status.object.empty()) text += fmt::format(" of {}", status.object.view());
  return text;
}

Liveness::Liveness(std::vector<ProcessIdentity> members, int rank, double timeout_s, double now)
    : members_(std::move(members)), rank_(rank), timeout_s_(timeout_s), peers_(members_.size()), last_tick_(now) {
  for (Peer& peer : peers_) peer.heard = now;
  if (rank_ != 0) partners_ = {0};
  else
    for (int r = 1; r < static_cast<int>(members_.size()); ++r) partners_.push_back(r);
}

void Liveness::set_status(const Status& status) {
  const Phase phase = self_.phase;
  self_ = status;
  self_.phase = phase;
}

void Liveness::heard(int from, const Beat& beat, double now) {
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  peer.heard = now;
  peer.status = beat.status;
  peer.knows = static_cast<bool>(beat.verdict);
  adopt(beat.verdict);
  if (rank_ == 0) {
    if (beat.suspect >= 0) ended(beat.suspect);
  } else if (from == 0) {
    all_know_ = all_know_ || beat.all_know;
    if (beat.all_left && !all_gone_) {
      self_.phase = Phase::gone;
      all_gone_ = true;
      ++news_;
    }
  }
}

void Liveness::ended(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.has_ended) return;
  peer.has_ended = true;
  if (verdict_ || peer.status.phase == Phase::gone || all_gone_) return;
  if (rank_ == 0 || rank == 0) {
    judge(rank, Verdict::Cause::died, fmt::format("{} died; last heard at {}", name_of(rank), where(peer.status)));
  } else {
    suspect_ = rank;
    ++news_;
  }
}

void Liveness::failed(std::string_view error) {
  if (!verdict_) judge(rank_, Verdict::Cause::failed, fmt::format("{} failed at {}: {}", name_of(rank_), where(self_), error));
}

void Liveness::leave() {
  if (self_.phase != Phase::working) return;
  self_.phase = Phase::leaving;
  ++news_;
}

void Liveness::tick(double now) {
  // This process itself was stopped, or starved: it has no right to say that others were silent.
  if (now - last_tick_ > timeout_s_ / 2)
    for (Peer& peer : peers_) peer.heard = now;
  last_tick_ = now;
  if (!verdict_ && !all_gone_) judge_silence(now);
  if (verdict_ && judged_at_ == 0) judged_at_ = now;
  if (rank_ == 0) gather_at_centre();
  else if (verdict_ && !hears(0)) all_know_ = all_know_ || now - judged_at_ > kSpreadSeconds;
}

void Liveness::judge_silence(double now) {
  const auto silent = std::find_if(partners_.begin(), partners_.end(), [&](int r) {
    return expects(r) && now - peers_[static_cast<std::size_t>(r)].heard > timeout_s_;
  });
  if (silent == partners_.end()) return;
  const Status& last = peers_[static_cast<std::size_t>(*silent)].status;
  judge(*silent, Verdict::Cause::silent,
        fmt::format("{} has not answered for {:g} s; last heard at {}", name_of(*silent), timeout_s_, where(last)));
}

// Whether a rank can still learn of the verdict.
bool Liveness::hears(int rank) const {
  return expects(rank) && !(rank == verdict_.culprit && verdict_.cause != Verdict::Cause::failed);
}

// Rank 0: whether all are done, are gone, or know.
void Liveness::gather_at_centre() {
  const auto of_all = [&](auto&& holds) {
    return std::all_of(partners_.begin(), partners_.end(), [&](int r) { return holds(r, peers_[static_cast<std::size_t>(r)]); });
  };
  if (verdict_) {
    const bool know = of_all([&](int r, const Peer& peer) { return peer.knows || !hears(r); });
    if (know && !all_know_) {
      all_know_ = true;
      ++news_;
    }
    return;
  }
  if (!all_left_ && self_.phase == Phase::leaving && of_all([](int, const Peer& peer) { return peer.status.phase != Phase::working; })) {
    all_left_ = true;
    ++news_;
  }
  if (all_left_ && of_all([](int, const Peer& peer) { return peer.status.phase == Phase::gone; })) {
    self_.phase = Phase::gone;
    all_gone_ = true;
  }
}

Beat Liveness::beat() const {
  Beat beat;
  beat.status = self_;
  beat.verdict = verdict_;
  beat.suspect = suspect_;
  beat.all_left = all_left_;
  beat.all_know = all_know_;
  return beat;
}

bool Liveness::expects(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return !peer.has_ended && peer.status.phase != Phase::gone;
}

void Liveness::judge(int rank, Verdict::Cause cause, const std::string& text) {
  Verdict verdict;
  verdict.cause = cause;
  verdict.culprit = rank;
  verdict.text.set(text);
  adopt(verdict);
  // The centre cannot pass it on.
  if (rank == 0 && rank_ != 0) {
    partners_.clear();
    for (int r = 1; r < static_cast<int>(members_.size()); ++r)
      if (r != rank_) partners_.push_back(r);
  }
}

void Liveness::adopt(const Verdict& verdict) {
  if (verdict_ || !verdict) return;
  verdict_ = verdict;
  ++news_;
}

std::string Liveness::name_of(int rank) const {
  const ProcessIdentity& member = members_[static_cast<std::size_t>(rank)];
  return fmt::format("rank {} (host {}, pid {})", rank, member.host, member.pid);
}

}  // namespace spillway::comm
