#include "comm/shared_channel.h"

#include "comm/backoff.h"
#include "comm/shared_futex.h"

namespace spillway::comm {

namespace {

constexpr int kCheckMs = 10;

constexpr std::int64_t lines(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

std::int64_t head_bytes(int ranks) {
  return lines(static_cast<std::int64_t>(sizeof(SharedChannel::Announcement)) + std::int64_t{ranks} * std::int64_t{sizeof(std::int64_t)});
}

// What a rank has for one of the two turns: its announcement, the sizes of its parts, and what it stages.
std::int64_t desk_bytes(int ranks, std::int64_t staged_bytes) { return head_bytes(ranks) + lines(staged_bytes); }

}  // namespace

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::barrier: return "barrier";
    case Collective::exchange: return "exchange";
    case Collective::exchange_texts: return "exchange of texts";
    case Collective::all_gather: return "all_gather";
    case Collective::all_to_all: return "all_to_all";
  }
  return "nothing known";
}

std::int64_t SharedChannel::bytes_needed(int ranks, std::int64_t staged_bytes) {
  return static_cast<std::int64_t>(sizeof(State)) + 2 * ranks * desk_bytes(ranks, staged_bytes);
}

SharedChannel::SharedChannel(Mapping memory, int rank, int ranks, std::int64_t staged_bytes, const Watchdog& watchdog)
    : memory_(std::move(memory)), rank_(rank), ranks_(ranks), staged_bytes_(staged_bytes), watchdog_(watchdog) {}

std::byte* SharedChannel::desk(int rank) const {
  return memory_.data() + sizeof(State) + (2 * rank + turn_) * desk_bytes(ranks_, staged_bytes_);
}

SharedChannel::Announcement& SharedChannel::announcement(int rank) const { return *reinterpret_cast<Announcement*>(desk(rank)); }

std::span<std::int64_t> SharedChannel::sizes(int rank) const {
  return {reinterpret_cast<std::int64_t*>(desk(rank) + sizeof(Announcement)), static_cast<std::size_t>(ranks_)};
}

std::byte* SharedChannel::staged(int rank) const { return desk(rank) + head_bytes(ranks_); }

void SharedChannel::meet() {
  watchdog_.check();
  State& all = state();
  const std::uint32_t round = all.rounds.load(std::memory_order_acquire);
  if (all.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(ranks_)) {
    all.arrived.store(0, std::memory_order_relaxed);
    all.rounds.store(round + 1, std::memory_order_release);
    wake_all(all.rounds);
    return;
  }
  Backoff backoff;
  while (all.rounds.load(std::memory_order_acquire) == round) {
    watchdog_.check();
    if (backoff.next_us() <= 0) backoff.pause();
    else sleep_on(all.rounds, round, kCheckMs);
  }
}

}  // namespace spillway::comm
