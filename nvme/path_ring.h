// One thread of a path: it owns an I/O engine, takes transfers from all channels, and keeps as many of their blocks in
// flight as the engine takes, in the order of the block queue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "block_queue.h"
#include "first_failure.h"
#include "path_activity.h"
#include "spillway/io_engine.h"

namespace spillway {

struct PathRingOptions {
  int fd = -1;
  IoEngineOptions engine;
  std::function<std::unique_ptr<IoEngine>(const IoEngineOptions&)> make_engine;
  std::function<std::string(const RingTransfer&)> describe;  // what there is to say of one that has failed
  std::int64_t block_bytes = 0;
  bool single_submit = false;
  bool overlap_events = true;
};

class PathRing {
 public:
  // Throws what making the engine throws. The rest is borrowed.
  PathRing(PathRingOptions options, PathActivity& activity, FirstFailure& failure);
  // When no transfer is left.
  ~PathRing();
  PathRing(const PathRing&) = delete;
  PathRing& operator=(const PathRing&) = delete;

  // For any thread. The transfer is delivered to its mailbox once, whatever happens.
  void push(RingTransfer& transfer);

  // Has the ring look for transfers of closed mailboxes. For any thread.
  void drop_closed();

  std::string_view engine_name() const { return engine_name_; }
  int depth() const { return static_cast<int>(slots_.size()); }

  // Of transfers pushed and not delivered.
  std::int64_t pending_bytes() const { return pending_bytes_.load(std::memory_order_relaxed); }

  // What the engine said when it failed; for whoever got a transfer with kEngineFailed.
  std::string engine_failure() const;

 private:
  // A request in flight; what is left of its block after short transfers.
  struct Slot {
    Block block{};
    std::int64_t start_ns = 0;
    int stalls = 0;  // attempts in a row that moved nothing
  };

  void make_engine();
  void run();
  bool take_arrivals();
  bool may_sleep();
  void give_up_transfers();
  void issue();
  void queue(int slot);
  void reap();
  void handle(const IoResult& result, std::int64_t now_ns);
  void end_block(int slot, int error);
  void end(RingTransfer& transfer, int error);
  void deliver(RingTransfer& transfer);
  void engine_failed(const std::string& text);

  PathRingOptions options_;
  PathActivity& activity_;
  FirstFailure& failure_;
  std::string engine_name_;
  std::atomic<std::int64_t> pending_bytes_{0};

  mutable std::mutex mutex_;  // guards these
  std::condition_variable arrived_;
  TransferList arrivals_;
  bool look_for_closed_ = false;
  bool stopping_ = false;
  bool asleep_ = false;         // in the engine, with room for more requests
  std::string engine_failure_;  // not empty: there is no engine any more

  // The thread's own; the engine is also woken by others, under the lock.
  std::unique_ptr<IoEngine> engine_;
  BlockQueue waiting_;
  std::vector<Slot> slots_;
  std::vector<int> free_slots_;
  std::vector<IoResult> results_;

  std::thread thread_;
};

}  // namespace spillway
