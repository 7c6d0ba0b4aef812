// What the ranks of one communicator share: a place to meet, what each is about to do, and memory through which
// their bytes pass. Every turn each rank stages, all meet, and each reads what the others staged. There are two of
// everything, used in turn: whoever stages turn k + 2 has met all others in turn k + 1, and so they have read turn k.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/shared_file.h"
#include "comm/watchdog.h"

namespace spillway::comm {

// What a rank calls, so that ranks that call different things find out.
enum class Collective : std::int32_t { barrier = 1, exchange, exchange_texts, all_gather, all_to_all };
std::string_view name_of(Collective collective);

class SharedChannel {
 public:
  // Of the channel of so many ranks, each of which stages up to staged_bytes a turn.
  static std::int64_t bytes_needed(int ranks, std::int64_t staged_bytes);

  // `memory` is whole pages that were zero when the first rank came to them.
  SharedChannel(Mapping memory, int rank, int ranks, std::int64_t staged_bytes, const Watchdog& watchdog);

  // Of this rank, for this turn; read by the others after meet().
  struct Announcement {
    Collective collective;
    std::int64_t largest;  // of its parts
  };
  Announcement& announcement(int rank) const;
  std::span<std::int64_t> sizes(int rank) const;  // of its parts, by receiver
  std::byte* staged(int rank) const;

  // Returns when all ranks have come. Throws as World::check().
  void meet();
  void end_turn() { turn_ ^= 1; }

  // Whether this is the last rank to leave.
  bool leave() { return state().left.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(ranks_); }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  std::int64_t staged_bytes() const { return staged_bytes_; }

 private:
  struct State {
    alignas(64) std::atomic<std::uint32_t> arrived;
    alignas(64) std::atomic<std::uint32_t> rounds;
    alignas(64) std::atomic<std::uint32_t> left;
  };

  State& state() const { return *reinterpret_cast<State*>(memory_.data()); }
  std::byte* desk(int rank) const;

  Mapping memory_;
  const int rank_, ranks_;
  const std::int64_t staged_bytes_;
  const Watchdog& watchdog_;
  int turn_ = 0;
};

}  // namespace spillway::comm
