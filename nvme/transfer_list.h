// A transfer on its way between a channel and a path's ring, and the queues it stands in: chained through the transfers
// themselves, so that no queue allocates and none has a bound.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "spillway/io_engine.h"
#include "spillway/swap_store.h"

namespace spillway {

class Mailbox;

// RingTransfer::error of a transfer that was given up: nothing moves once something has failed, or its channel is closed.
inline constexpr int kAbandoned = -1;
// The ring's engine itself has failed.
inline constexpr int kEngineFailed = -2;

// A range of a path's file that is moved whole. Its channel's until pushed to the ring and from when it is delivered.
struct RingTransfer {
  IoOp op = IoOp::read;
  IoPriority priority = IoPriority::streaming;
  int extent = 0;
  std::int64_t offset = 0;  // in the file
  std::int64_t bytes = 0;
  std::byte* data = nullptr;
  Mailbox* mailbox = nullptr;

  // The ring's.
  std::int64_t issued = 0;        // bytes that have gone to the engine
  int blocks_in_flight = 0;
  int error = 0;                  // of the first block that failed: an errno, or one of the above; 0: none
  std::int64_t error_offset = 0;  // in the file
  RingTransfer* next = nullptr;   // in the list it stands in
};

// First in, first out.
class TransferList {
 public:
  TransferList() = default;
  TransferList(TransferList&& other) noexcept : first_(std::exchange(other.first_, nullptr)), last_(std::exchange(other.last_, nullptr)) {}
  TransferList& operator=(TransferList&& other) noexcept {
    first_ = std::exchange(other.first_, nullptr);
    last_ = std::exchange(other.last_, nullptr);
    return *this;
  }

  bool empty() const { return first_ == nullptr; }
  RingTransfer& front() const {
    assert(first_ != nullptr);
    return *first_;
  }

  void push(RingTransfer& transfer) {
    transfer.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &transfer;
    last_ = &transfer;
  }

  RingTransfer& pop() {
    RingTransfer& transfer = front();
    first_ = std::exchange(transfer.next, nullptr);
    return transfer;
  }

  // Takes out those that match, in order.
  template <class Predicate>
  TransferList take_if(Predicate matches) {
    TransferList taken, kept;
    while (!empty()) {
      RingTransfer& transfer = pop();
      (matches(transfer) ? taken : kept).push(transfer);
    }
    *this = std::move(kept);
    return taken;
  }

 private:
  RingTransfer* first_ = nullptr;
  RingTransfer* last_ = nullptr;  // meaningless if empty
};

}  // namespace spillway
