#include "block_queue.h"

#include <algorithm>
#include <cassert>

namespace spillway {

bool BlockQueue::empty() const {
  return std::ranges::all_of(lists_, [](const TransferList& list) { return list.empty(); });
}

TransferList& BlockQueue::list_of(const RingTransfer& transfer) {
  switch (transfer.priority) {
    case IoPriority::urgent: return lists_[urgent];
    case IoPriority::streaming: return lists_[transfer.op == IoOp::read ? reads : writes];
    case IoPriority::background: return lists_[background];
  }
  assert(false);
  return lists_[background];
}

BlockQueue::Class BlockQueue::next_class() {
  if (!lists_[urgent].empty()) return urgent;
  const bool streaming = !lists_[reads].empty() || !lists_[writes].empty();
  if (!lists_[background].empty() && (!streaming || background_debt_ >= (kBackgroundShare - 1) * block_bytes_)) return background;
  assert(streaming);
  if (lists_[writes].empty()) return reads;
  if (lists_[reads].empty()) return writes;
  return read_lead_ <= 0 ? reads : writes;
}

// Nobody earns credit who is not waiting: a burst of writes after a long time of reads alone does not shut these out.
void BlockQueue::charge(Class served, std::int64_t bytes) {
  if (served == urgent) return;
  if (served == background) {
    background_debt_ = std::max<std::int64_t>(0, background_debt_ - (kBackgroundShare - 1) * bytes);
    return;
  }
  const bool both = !lists_[reads].empty() && !lists_[writes].empty();
  read_lead_ = both ? read_lead_ + (served == reads ? bytes : -bytes) : 0;
  background_debt_ = lists_[background].empty() ? 0 : background_debt_ + bytes;
}

Block BlockQueue::pop() {
  const Class served = next_class();
  RingTransfer& transfer = lists_[served].front();
  const Block block{&transfer, transfer.issued, std::min(block_bytes_, transfer.bytes - transfer.issued)};
  charge(served, block.bytes);
  transfer.issued += block.bytes;
  ++transfer.blocks_in_flight;
  if (transfer.issued == transfer.bytes) lists_[served].pop();
  return block;
}

}  // namespace spillway
