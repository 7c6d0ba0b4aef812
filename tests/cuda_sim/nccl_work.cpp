#include "cuda_sim/nccl_work.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "cuda_sim/stream_work.h"

namespace cuda_sim {

namespace {

const char* name_of(NcclCall call) {
  switch (call) {
    case NcclCall::all_gather: return "ncclAllGather";
    case NcclCall::broadcast: return "ncclBroadcast";
    case NcclCall::send_receive: return "ncclSend or ncclRecv";
  }
  return "nothing known";
}

// The stream's side is the program's memory, which sanitizers look at; the shared side is the simulation's own.
void copy_out(std::byte* shared, const std::byte* memory, std::int64_t bytes) {
  reads_memory(memory, static_cast<std::size_t>(bytes));
  const Unseen unseen;
  std::memcpy(shared, memory, static_cast<std::size_t>(bytes));
}

void copy_in(std::byte* memory, const std::byte* shared, std::int64_t bytes) {
  writes_memory(memory, static_cast<std::size_t>(bytes));
  const Unseen unseen;
  std::memcpy(memory, shared, static_cast<std::size_t>(bytes));
}

}  // namespace

NcclWork::NcclWork(std::shared_ptr<NcclShared> shared)
    : shared_(std::move(shared)),
      sends_(static_cast<std::size_t>(shared_->segment.ranks)),
      receives_(static_cast<std::size_t>(shared_->segment.ranks)) {}

void NcclWork::send(int to, NcclCall call, const void* memory, std::int64_t bytes) {
  if (bytes > 0) sends_[static_cast<std::size_t>(to)].push_back({call, static_cast<std::byte*>(const_cast<void*>(memory)), bytes});
}

void NcclWork::receive(int from, NcclCall call, void* memory, std::int64_t bytes) {
  if (bytes > 0) receives_[static_cast<std::size_t>(from)].push_back({call, static_cast<std::byte*>(memory), bytes});
}

void NcclWork::copy(const void* from, void* to, std::int64_t bytes) {
  if (bytes > 0 && from != to) copies_.push_back({from, to, bytes});
}

void NcclWork::run() {
  for (const Copy& own : copies_) std::memmove(own.to, own.from, static_cast<std::size_t>(own.bytes));
  while (!is_done() && !shared_->aborted.load()) {
    bool moved = false;
    for (int r = 0; r < shared_->segment.ranks; ++r) {
      moved |= send_piece(r);
      moved |= receive_piece(r);
    }
    if (moved) continue;
    look_for_lost_peers();
    release_all();
    usleep(50);
  }
  shared_->outstanding.fetch_sub(1);
}

bool NcclWork::send_piece(int to) {
  std::deque<NcclMessage>& messages = sends_[static_cast<std::size_t>(to)];
  if (messages.empty()) return false;
  NcclSegment::Box& box = shared_->segment.box(shared_->segment.rank, to);
  if (box.full.load(std::memory_order_acquire) != 0) return false;
  NcclMessage& message = messages.front();
  const std::int64_t bytes = std::min(NcclSegment::kPieceBytes, message.bytes - message.done);
  box.kind = static_cast<std::uint32_t>(message.call);
  box.total_bytes = message.bytes;
  copy_out(box.piece, message.memory + message.done, bytes);
  box.full.store(1, std::memory_order_release);
  message.done += bytes;
  const Unseen unseen;
  if (message.done == message.bytes) messages.pop_front();
  return true;
}

bool NcclWork::receive_piece(int from) {
  std::deque<NcclMessage>& messages = receives_[static_cast<std::size_t>(from)];
  if (messages.empty()) return false;
  NcclSegment::Box& box = shared_->segment.box(from, shared_->segment.rank);
  if (box.full.load(std::memory_order_acquire) == 0) return false;
  NcclMessage& message = messages.front();
  if (box.kind != static_cast<std::uint32_t>(message.call) || box.total_bytes != message.bytes)
    violation("rank %d of %d expects %lld bytes of rank %d by %s, which sends %lld by %s", shared_->segment.rank, shared_->segment.ranks,
              static_cast<long long>(message.bytes), from, name_of(message.call), static_cast<long long>(box.total_bytes),
              name_of(static_cast<NcclCall>(box.kind)));
  const std::int64_t bytes = std::min(NcclSegment::kPieceBytes, message.bytes - message.done);
  copy_in(message.memory + message.done, box.piece, bytes);
  box.full.store(0, std::memory_order_release);
  message.done += bytes;
  const Unseen unseen;
  if (message.done == message.bytes) messages.pop_front();
  return true;
}

bool NcclWork::is_done() const {
  const auto all_empty = [](const auto& queues) { return std::all_of(queues.begin(), queues.end(), [](const auto& queue) { return queue.empty(); }); };
  return all_empty(sends_) && all_empty(receives_);
}

void NcclWork::look_for_lost_peers() {
  for (int r = 0; r < shared_->segment.ranks; ++r) {
    const bool waits = !sends_[static_cast<std::size_t>(r)].empty() || !receives_[static_cast<std::size_t>(r)].empty();
    if (waits && shared_->segment.seat(r).aborted.load() != 0) shared_->peer_lost.store(true);
  }
}

}  // namespace cuda_sim
