#include "support/tile_traffic.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/lane_state.h"
#include "spillway/error.h"

namespace spillway::bench {

namespace {

using Clock = std::chrono::steady_clock;

// Of the trainer's ring at its default prefetch depth: two tiles on their way in, one updated, two on their way out.
constexpr int kPlaces = 5;

// Nothing that a disk could compress.
void fill(std::byte* memory, std::int64_t bytes) {
  std::uint64_t value = 0x9e3779b97f4a7c15ull;
  for (std::int64_t i = 0; i < bytes; i += 8) {
    value ^= value << 13, value ^= value >> 7, value ^= value << 17;
    std::memcpy(memory + i, &value, 8);
  }
}

}  // namespace

// One turn: a lane that leads and one that may follow it, and what they know of each other, in tiles from the turn's first.
class TileTraffic::Turn {
 public:
  Turn(TileTraffic& traffic, double seconds, std::int64_t fewest)
      : traffic_(traffic), fewest_(fewest), deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  // There are as many tiles as fit the time. A place is free again when its tile has left it: has been written back by the
  // lane that follows, if one does, else has been moved.
  void lead(SwapChannel& channel, IoOp op, bool followed) {
    const auto more = [this](std::int64_t tile) {
      if (tile >= fewest_ && Clock::now() >= deadline_) return false;
      tiles_.store(tile + 1);
      return true;
    };
    const auto give_up = [this] { arrived_.release(); };
    guard([&] { play(channel, op, more, arrived_, followed ? &written_ : nullptr, kPlaces); }, give_up);
  }

  // Writes back what the other lane has read.
  void follow(SwapChannel& channel) {
    const auto more = [this](std::int64_t tile) { return arrived_.value() != Counter::kReleased || tile < tiles_.load(); };
    const auto give_up = [this] { written_.release(); };
    guard([&] { play(channel, IoOp::write, more, written_, &arrived_, 0); }, give_up);
  }

  // Tiles moved. Throws what ended a lane.
  std::int64_t tiles() const {
    if (failure_) std::rethrow_exception(failure_);
    return tiles_.load();
  }

 private:
  // Either way the other lane is let go.
  void guard(const std::function<void()>& lane, const std::function<void()>& let_go) {
    try {
      lane();
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      failure_ = std::current_exception();
    }
    let_go();
  }

  // Tiles in order: each is started when `other` has come to within `slack` of it; `done` is how many, from the first on,
  // have been moved.
  void play(SwapChannel& channel, IoOp op, const std::function<bool(std::int64_t)>& more, Counter& done, const Counter* other, int slack) {
    std::array<bool, kPlaces> moved{};
    std::int64_t next = 0, retired = 0;
    const auto reap = [&] {
      for (const SwapCompletion& completion : channel.completions(true)) moved[completion.tag] = true;
      while (retired < next && std::exchange(moved[static_cast<std::size_t>(retired % kPlaces)], false)) ++retired;
      done.reach(static_cast<std::uint32_t>(retired));
    };
    for (;; ++next) {
      const auto wanted = static_cast<std::uint32_t>(std::max<std::int64_t>(next + 1 - slack, 0));
      while (next - retired == kPlaces || (other != nullptr && other->value() < wanted)) {
        next > retired ? reap() : other->wait(wanted);
      }
      if (!more(next)) break;
      start(channel, op, next);
    }
    while (next > retired) reap();
  }

  void start(SwapChannel& channel, IoOp op, std::int64_t tile) {
    const auto extent = static_cast<int>((traffic_.next_ + tile) % traffic_.tiles_);
    const std::int64_t place = tile % kPlaces;
    std::byte* data = traffic_.memory_ + place * traffic_.tile_bytes_;
    op == IoOp::read ? channel.read(extent, data, static_cast<std::uint64_t>(place)) : channel.write(extent, data, static_cast<std::uint64_t>(place));
  }

  TileTraffic& traffic_;
  std::int64_t fewest_;
  Clock::time_point deadline_;
  std::atomic<std::int64_t> tiles_{0};  // started by the lane that leads; all there will be once arrived_ is released
  Counter arrived_, written_;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

TileTraffic::TileTraffic(const TileTrafficSetup& setup)
    : device_(make_host_device({})),
      memory_(device_->allocate_pinned(kPlaces * setup.tile_bytes)),
      tile_bytes_(setup.tile_bytes),
      tiles_(setup.bytes / setup.tile_bytes) {
  fill(memory_, kPlaces * tile_bytes_);
  SwapStoreOptions options;
  options.paths = {{setup.folder}};
  for (std::int64_t tile = 0; tile < tiles_; ++tile) options.extents.push_back({"tile " + std::to_string(tile), tile_bytes_});
  options.contents = "tiles of a benchmark";
  options.engine.depth = setup.depth;
  options.engine.memory = {memory_, static_cast<std::size_t>(kPlaces * tile_bytes_)};
  if (setup.block_bytes > 0) options.block_bytes = setup.block_bytes;
  store_ = make_swap_store(std::move(options));
  reads_ = store_->open_channel(IoPriority::streaming);
  writes_ = store_->open_channel(IoPriority::streaming);
  restore();
}

TileTraffic::~TileTraffic() = default;

// The one file of that size among those of this process that have no name any more.
std::string TileTraffic::file() const {
  const std::int64_t bytes = health().file_bytes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat status{};
    if (stat(entry.path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (status.st_nlink == 0 && status.st_size == bytes) return fmt::format("/proc/{}/fd/{}", getpid(), entry.path().filename().string());
  }
  throw Error("[bench] the swap file is not among the open files of /proc/self/fd");
}

Moved TileTraffic::move(TilePattern pattern, double seconds, std::int64_t fewest) {
  const bool mixed = pattern == TilePattern::mixed;
  const auto start = Clock::now();
  Turn turn(*this, seconds, fewest);
  std::thread follower;
  if (mixed) follower = std::thread([&] { turn.follow(*writes_); });
  pattern == TilePattern::write ? turn.lead(*writes_, IoOp::write, mixed) : turn.lead(*reads_, IoOp::read, mixed);
  if (mixed) follower.join();
  const double taken = std::chrono::duration<double>(Clock::now() - start).count();
  const std::int64_t tiles = turn.tiles();
  next_ = next_ < tiles_ / 2 ? tiles_ / 2 : 0;
  return {tiles * tile_bytes_ * (mixed ? 2 : 1), taken};
}

}  // namespace spillway::bench
