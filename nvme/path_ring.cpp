#include "path_ring.h"

#include <cassert>
#include <cerrno>
#include <csignal>
#include <exception>
#include <future>
#include <span>
#include <stdexcept>
#include <utility>

#include "mailbox.h"

namespace spillway {

namespace {

// How often one block may be tried without moving (EAGAIN, EINTR, nothing transferred) before it fails.
constexpr int kMaxStalls = 64;

}  // namespace

PathRing::PathRing(PathRingOptions options, PathActivity& activity, FirstFailure& failure)
    : options_(std::move(options)), activity_(activity), failure_(failure), waiting_(options_.block_bytes) {
  std::promise<void> started;
  std::future<void> start = started.get_future();
  // Signals belong to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this, &started] {
      try {
        make_engine();
      } catch (...) {
        started.set_exception(std::current_exception());
        return;
      }
      started.set_value();
      run();
    });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  try {
    start.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

PathRing::~PathRing() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_one();
  thread_.join();
}

void PathRing::make_engine() {
  engine_ = options_.make_engine(options_.engine);
  engine_name_ = engine_->name();
  const int depth = engine_->depth();
  slots_.resize(static_cast<std::size_t>(depth));
  results_.resize(slots_.size());
  free_slots_.reserve(slots_.size());
  for (int i = depth - 1; i >= 0; --i) free_slots_.push_back(i);
}

void PathRing::push(RingTransfer& transfer) {
  pending_bytes_.fetch_add(transfer.bytes, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    if (engine_failure_.empty()) {
      arrivals_.push(transfer);
      arrived_.notify_one();
      // Under the lock, which whoever takes the engine away holds, too.
      if (std::exchange(asleep_, false)) engine_->wake();
      return;
    }
  }
  end(transfer, kEngineFailed);
}

void PathRing::drop_closed() {
  const std::lock_guard lock(mutex_);
  look_for_closed_ = true;  // seen at the next result: a ring without any request in flight has nothing to look for
}

std::string PathRing::engine_failure() const {
  const std::lock_guard lock(mutex_);
  return engine_failure_;
}

void PathRing::run() {
  try {
    while (take_arrivals()) {
      give_up_transfers();
      issue();
      reap();
    }
    const std::lock_guard lock(mutex_);
    engine_.reset();
  } catch (const std::exception& error) {
    engine_failed(error.what());
  }
}

// Waits while there is nothing to do; false: nothing will come any more.
bool PathRing::take_arrivals() {
  const bool idle = waiting_.empty() && free_slots_.size() == slots_.size();
  std::unique_lock lock(mutex_);
  if (idle) arrived_.wait(lock, [&] { return stopping_ || !arrivals_.empty(); });
  if (idle && arrivals_.empty()) return false;
  while (!arrivals_.empty()) waiting_.push(arrivals_.pop());
  return true;
}

// What nobody waits for any more, and writes once something has failed.
void PathRing::give_up_transfers() {
  bool closed = false;
  {
    const std::lock_guard lock(mutex_);
    closed = std::exchange(look_for_closed_, false);
  }
  const bool no_writes = failure_.happened();
  if (!closed && !no_writes) return;
  TransferList given_up = waiting_.take_if([&](const RingTransfer& transfer) {
    return (no_writes && transfer.op == IoOp::write) || transfer.mailbox->closed();
  });
  while (!given_up.empty()) end(given_up.pop(), kAbandoned);
}

void PathRing::issue() {
  if (waiting_.empty() || free_slots_.empty()) return;
  const std::int64_t now = monotonic_ns();
  if (free_slots_.size() == slots_.size()) activity_.busy.begin(now);
  while (!waiting_.empty() && !free_slots_.empty()) {
    const int slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[static_cast<std::size_t>(slot)] = {waiting_.pop(), now, 0};
    queue(slot);
    if (options_.single_submit) engine_->submit();
  }
  engine_->submit();
}

void PathRing::queue(int slot) {
  const Block& block = slots_[static_cast<std::size_t>(slot)].block;
  const RingTransfer& transfer = *block.transfer;
  const bool taken = engine_->queue({transfer.op, options_.fd, transfer.offset + block.begin, transfer.data + block.begin, block.bytes,
                                     static_cast<std::uint64_t>(slot)});
  // There are as many slots as requests that the engine takes.
  if (!taken) throw std::logic_error("the I/O engine takes fewer requests than its depth says");
}

// True if the thread may wait in the engine; from then on whoever brings a transfer that could be issued wakes it.
bool PathRing::may_sleep() {
  const std::lock_guard lock(mutex_);
  asleep_ = arrivals_.empty() && !free_slots_.empty() && options_.overlap_events;
  return arrivals_.empty() || free_slots_.empty() || !options_.overlap_events;
}

void PathRing::reap() {
  std::size_t in_flight = slots_.size() - free_slots_.size();
  if (in_flight == 0) return;
  const bool sleep = may_sleep();
  do {
    const int count = engine_->reap(results_, sleep ? 1 : 0);
    const std::int64_t now = monotonic_ns();
    for (const IoResult& result : std::span(results_).first(static_cast<std::size_t>(count))) handle(result, now);
    if (count > 0) engine_->submit();  // what short transfers have queued again
    in_flight = slots_.size() - free_slots_.size();
    if (in_flight == 0) activity_.busy.end(now);
  } while (!options_.overlap_events && in_flight > 0);
  const std::lock_guard lock(mutex_);
  asleep_ = false;
}

void PathRing::handle(const IoResult& result, std::int64_t now_ns) {
  const int index = static_cast<int>(result.tag);
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  Block& block = slot.block;
  const bool read = block.transfer->op == IoOp::read;
  (read ? activity_.read_latency : activity_.write_latency).add(now_ns - slot.start_ns);
  const bool interrupted = result.error == EINTR || result.error == EAGAIN;
  if (result.error != 0 && !interrupted) return end_block(index, result.error);

  // O_DIRECT wants to go on at an aligned place, so an odd tail is moved again.
  const bool whole = !interrupted && result.bytes == block.bytes;
  const std::int64_t moved = interrupted ? 0 : whole ? block.bytes : result.bytes / SwapStore::alignment * SwapStore::alignment;
  (read ? activity_.read_bytes : activity_.write_bytes).fetch_add(moved, std::memory_order_relaxed);
  if (whole) return end_block(index, 0);
  if (!interrupted && result.bytes == 0 && read) return end_block(index, ENODATA);  // the file ends here

  activity_.retries.fetch_add(1, std::memory_order_relaxed);
  block.begin += moved;
  block.bytes -= moved;
  slot.start_ns = now_ns;
  slot.stalls = moved > 0 ? 0 : slot.stalls + 1;
  if (slot.stalls > kMaxStalls) return end_block(index, interrupted ? result.error : EIO);
  queue(index);
}

void PathRing::end_block(int slot, int error) {
  const Block block = slots_[static_cast<std::size_t>(slot)].block;
  free_slots_.push_back(slot);
  RingTransfer& transfer = *block.transfer;
  --transfer.blocks_in_flight;
  if (error != 0 && transfer.error == 0) {
    transfer.error_offset = transfer.offset + block.begin;
    waiting_.take_if([&](const RingTransfer& other) { return &other == &transfer; });
    return end(transfer, error);
  }
  if (transfer.issued == transfer.bytes && transfer.blocks_in_flight == 0) deliver(transfer);
}

// Of a transfer that is in no list: it fails, and is delivered when what is in flight of it has ended.
void PathRing::end(RingTransfer& transfer, int error) {
  if (transfer.error == 0) transfer.error = error;
  if (error != kAbandoned) failure_.note([&] { return options_.describe(transfer); });
  transfer.issued = transfer.bytes;
  if (transfer.blocks_in_flight == 0) deliver(transfer);
}

void PathRing::deliver(RingTransfer& transfer) {
  pending_bytes_.fetch_sub(transfer.bytes, std::memory_order_relaxed);
  transfer.mailbox->deliver(transfer);
}

void PathRing::engine_failed(const std::string& text) {
  std::unique_ptr<IoEngine> engine;
  {
    const std::lock_guard lock(mutex_);
    engine = std::move(engine_);
    asleep_ = false;
    engine_failure_ = text.empty() ? "unknown" : text;
    while (!arrivals_.empty()) waiting_.push(arrivals_.pop());
  }
  engine.reset();  // its buffers are nobody's but their owners' from here on
  if (free_slots_.size() < slots_.size()) activity_.busy.end(monotonic_ns());
  TransferList lost = waiting_.take_if([](const RingTransfer&) { return true; });
  while (!lost.empty()) end(lost.pop(), kEngineFailed);
  std::vector<bool> in_flight(slots_.size(), true);
  for (const int slot : free_slots_) in_flight[static_cast<std::size_t>(slot)] = false;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (in_flight[slot]) end_block(static_cast<int>(slot), kEngineFailed);
  }
}

}  // namespace spillway
