// A channel: whole extents on top, blocks through an I/O engine below.
#pragma once

#include <memory>
#include <vector>

#include "spillway/io_engine.h"
#include "spillway/swap_store.h"
#include "swap_state.h"

namespace spillway {

class EngineSwapChannel final : public SwapChannel {
 public:
  // `state` outlives the channel.
  EngineSwapChannel(SwapState& state, std::unique_ptr<IoEngine> engine);

  void read(int extent, std::byte* data, std::uint64_t tag) override;
  void write(int extent, const std::byte* data, std::uint64_t tag) override;
  int in_flight() const override;
  std::span<const SwapCompletion> completions(bool wait) override;

 private:
  // A transfer in progress, in a place of its own: an extent may be read several times at once.
  struct Transfer {
    int extent = 0;
    IoOp op = IoOp::read;
    std::byte* data = nullptr;
    std::uint64_t tag = 0;
    std::uint64_t checksum = 0;  // read: expected; write: of the data
    std::int64_t blocks_left = 0;
    int error = 0;                  // the first block's that failed; 0: none
    std::int64_t error_offset = 0;  // in the extent
  };

  // One request of a transfer; what is left of it after short transfers.
  struct Block {
    int transfer = 0;
    std::int64_t offset = 0;  // in the extent
    std::int64_t bytes = 0;
    int stalls = 0;  // attempts in a row that moved nothing
  };

  void start(const Transfer& transfer);
  int free_transfer();
  const SwapExtent& extent_of(const Transfer& transfer) const;
  bool queue(int block);
  void reap(int min_results);
  void handle(const IoResult& result);
  void end_block(int block, int error);
  void finish(int slot);
  void finish_read(const Transfer& transfer);
  void fail(const Transfer& transfer, const std::string& reason);
  std::string failure_reason(const Transfer& transfer) const;

  SwapState& state_;
  std::vector<Transfer> transfers_;
  std::vector<int> free_transfers_;
  std::vector<Block> blocks_;        // by request tag
  std::vector<int> free_blocks_;
  std::vector<IoResult> results_;
  std::vector<SwapCompletion> finished_, returned_;
  std::vector<std::string> failures_;
  int moving_ = 0;  // transfers with blocks left
  // Last, so destroyed first: it waits for the requests in flight.
  std::unique_ptr<IoEngine> engine_;
};

}  // namespace spillway
