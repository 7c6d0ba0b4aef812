// A channel: keeps the records of extents and their checksums, and hands transfers to the rings of their paths.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "mailbox.h"
#include "spillway/swap_store.h"
#include "swap_state.h"

namespace spillway {

class StoreChannel final : public SwapChannel {
 public:
  // `state` outlives the channel.
  StoreChannel(SwapState& state, IoPriority priority);
  ~StoreChannel() override;

  void read(int extent, std::byte* data, std::uint64_t tag) override;
  void write(int extent, const std::byte* data, std::uint64_t tag) override;
  int in_flight() const override;
  std::span<const SwapCompletion> completions(bool wait) override;

 private:
  // In a place of its own: an extent may be read several times at once.
  struct Transfer : RingTransfer {
    std::uint64_t tag = 0;
    ExtentRecord record{};  // read: what is expected; write: what holds once it is done
  };

  Transfer& free_transfer();
  void start(Transfer& transfer, int extent, IoOp op, std::byte* data, std::uint64_t tag);
  void collect(bool wait);
  bool finish(Transfer& transfer);
  void finish_write(const Transfer& transfer);
  bool finish_read(const Transfer& transfer);

  SwapState& state_;
  IoPriority priority_;
  std::deque<Transfer> transfers_;  // their addresses are known to rings
  TransferList free_;
  int started_ = 0;                 // and not taken from the mailbox
  int waiting_ = 0;                 // taken, and not looked at
  TransferList arrived_;
  std::vector<SwapCompletion> finished_, returned_;
  std::vector<std::string> failures_;
  Mailbox mailbox_;
};

}  // namespace spillway
