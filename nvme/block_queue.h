// Which block a path moves next, of the transfers that wait for it. Pure: no thread, no disk.
#pragma once

#include <array>
#include <cstdint>

#include "transfer_list.h"

namespace spillway {

// One request of a transfer: bytes from its first.
struct Block {
  RingTransfer* transfer;
  std::int64_t begin;
  std::int64_t bytes;
};

// Urgent transfers go first. Streaming reads and writes take turns so that while both wait as many bytes of the one go as
// of the other; of the bytes that go while background transfers wait for streaming ones, those get kBackgroundShare.
// Within a class the first come is the first served.
class BlockQueue {
 public:
  static constexpr std::int64_t kBackgroundShare = 8;  // one byte in so many

  explicit BlockQueue(std::int64_t block_bytes) : block_bytes_(block_bytes) {}

  void push(RingTransfer& transfer) { list_of(transfer).push(transfer); }
  bool empty() const;

  // The next block, which counts as issued. A transfer is out of the queue with its last block. Not if empty().
  Block pop();

  // Takes out transfers that match, whatever of them has been issued.
  template <class Predicate>
  TransferList take_if(Predicate matches) {
    TransferList taken;
    for (TransferList& list : lists_) {
      for (TransferList some = list.take_if(matches); !some.empty();) taken.push(some.pop());
    }
    return taken;
  }

 private:
  enum Class : std::uint8_t { urgent, reads, writes, background };

  TransferList& list_of(const RingTransfer& transfer);
  Class next_class();
  void charge(Class served, std::int64_t bytes);

  std::int64_t block_bytes_;
  std::array<TransferList, 4> lists_;
  std::int64_t read_lead_ = 0;        // bytes that reads are ahead of writes
  std::int64_t background_debt_ = 0;  // bytes of streaming transfers that background ones have let pass
};

}  // namespace spillway
