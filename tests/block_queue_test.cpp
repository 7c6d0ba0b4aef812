// The order in which a path moves blocks: by priority, by credit, and nobody forever last.
#include <deque>
#include <random>

#include <gtest/gtest.h>

#include "nvme/block_queue.h"

namespace spillway {
namespace {

constexpr std::int64_t kBlock = 1 << 16;

class BlockQueueTest : public ::testing::Test {
 protected:
  RingTransfer& add(IoOp op, IoPriority priority, std::int64_t bytes) {
    RingTransfer& transfer = transfers_.emplace_back();
    transfer.op = op;
    transfer.priority = priority;
    transfer.bytes = bytes;
    queue_.push(transfer);
    return transfer;
  }

  std::deque<RingTransfer> transfers_;
  BlockQueue queue_{kBlock};
};

TEST_F(BlockQueueTest, CutsATransferIntoBlocksInOrder) {
  RingTransfer& transfer = add(IoOp::read, IoPriority::streaming, 2 * kBlock + 4096);
  for (const auto& [begin, bytes] : {std::pair<std::int64_t, std::int64_t>{0, kBlock}, {kBlock, kBlock}, {2 * kBlock, 4096}}) {
    const Block block = queue_.pop();
    EXPECT_EQ(block.transfer, &transfer);
    EXPECT_EQ(block.begin, begin);
    EXPECT_EQ(block.bytes, bytes);
  }
  EXPECT_EQ(transfer.issued, transfer.bytes);
  EXPECT_EQ(transfer.blocks_in_flight, 3);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(BlockQueueTest, UrgentGoesBeforeWhatIsHalfDone) {
  RingTransfer& write = add(IoOp::write, IoPriority::streaming, 4 * kBlock);
  add(IoOp::read, IoPriority::background, kBlock);
  EXPECT_EQ(queue_.pop().transfer, &write);
  RingTransfer& urgent_read = add(IoOp::read, IoPriority::urgent, 3 * kBlock);
  RingTransfer& urgent_write = add(IoOp::write, IoPriority::urgent, kBlock);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue_.pop().transfer, &urgent_read) << i;
  EXPECT_EQ(queue_.pop().transfer, &urgent_write);
  EXPECT_EQ(queue_.pop().transfer, &write);
}

TEST_F(BlockQueueTest, WithinAClassTheFirstComeIsTheFirstServed) {
  std::vector<RingTransfer*> added;
  for (int i = 0; i < 5; ++i) added.push_back(&add(IoOp::write, IoPriority::streaming, 2 * kBlock));
  for (RingTransfer* transfer : added) {
    EXPECT_EQ(queue_.pop().transfer, transfer);
    EXPECT_EQ(queue_.pop().transfer, transfer);
  }
}

TEST_F(BlockQueueTest, WhoWaitedAloneHasEarnedOrLostNothing) {
  add(IoOp::read, IoPriority::streaming, 100 * kBlock);
  for (int i = 0; i < 50; ++i) queue_.pop();
  add(IoOp::write, IoPriority::streaming, 50 * kBlock);
  int writes = 0;
  for (int i = 0; i < 10; ++i) writes += queue_.pop().transfer->op == IoOp::write ? 1 : 0;
  EXPECT_EQ(writes, 5);
}

// Transfers of all sizes come at random while blocks go. Wherever reads and writes both wait, what has gone of each since
// both began to wait differs by a block at most; and a background transfer that waits lets pass so many bytes, and no more.
TEST_F(BlockQueueTest, SharesByBytesAndStarvesNobodyWhateverComes) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    transfers_.clear();
    queue_ = BlockQueue(kBlock);
    std::mt19937 random(seed);
    const auto pick = [&](int below) { return std::uniform_int_distribution<int>(0, below - 1)(random); };
    std::int64_t queued[2] = {0, 0}, lead = 0, passed = 0, background = 0, urgent = 0;
    for (int turn = 0; turn < 3000; ++turn) {
      if (pick(3) == 0 || queue_.empty()) {
        const IoOp op = pick(2) == 0 ? IoOp::read : IoOp::write;
        const std::int64_t bytes = (1 + pick(64)) * 4096;
        const int kind = pick(8);
        const IoPriority priority = kind == 0 ? IoPriority::urgent : kind == 1 ? IoPriority::background : IoPriority::streaming;
        add(op, priority, bytes);
        if (priority == IoPriority::streaming) queued[op == IoOp::write] += bytes;
        if (priority == IoPriority::background) background += bytes;
        if (priority == IoPriority::urgent) urgent += bytes;
        continue;
      }
      const bool both = queued[0] > 0 && queued[1] > 0, background_waits = background > 0;
      const Block block = queue_.pop();
      if (block.transfer->priority == IoPriority::urgent) {
        urgent -= block.bytes;
        continue;
      }
      ASSERT_EQ(urgent, 0) << "seed " << seed << " turn " << turn;
      if (block.transfer->priority == IoPriority::background) {
        background -= block.bytes;
        passed = 0;
        continue;
      }
      const bool write = block.transfer->op == IoOp::write;
      queued[write] -= block.bytes;
      lead = both ? lead + (write ? -block.bytes : block.bytes) : 0;
      ASSERT_LE(std::abs(lead), kBlock) << "seed " << seed << " turn " << turn;
      passed = background_waits ? passed + block.bytes : 0;
      ASSERT_LE(passed, BlockQueue::kBackgroundShare * kBlock) << "seed " << seed << " turn " << turn;
    }
  }
}

TEST_F(BlockQueueTest, BackgroundGetsItsShareAndNoMore) {
  add(IoOp::read, IoPriority::streaming, 1000 * kBlock);
  add(IoOp::write, IoPriority::background, 1000 * kBlock);
  int background = 0;
  for (int i = 0; i < 800; ++i) background += queue_.pop().transfer->priority == IoPriority::background ? 1 : 0;
  EXPECT_EQ(background, 800 / BlockQueue::kBackgroundShare);
}

TEST_F(BlockQueueTest, TakesOutWhatMatchesAndKeepsTheOrderOfTheRest) {
  std::vector<RingTransfer*> reads;
  for (int i = 0; i < 6; ++i) {
    RingTransfer& transfer = add(i % 2 == 0 ? IoOp::read : IoOp::write, IoPriority::urgent, kBlock);
    if (i % 2 == 0) reads.push_back(&transfer);
  }
  add(IoOp::write, IoPriority::background, kBlock);
  TransferList taken = queue_.take_if([](const RingTransfer& transfer) { return transfer.op == IoOp::write; });
  int count = 0;
  for (; !taken.empty(); ++count) EXPECT_EQ(taken.pop().op, IoOp::write);
  EXPECT_EQ(count, 4);
  for (RingTransfer* transfer : reads) EXPECT_EQ(queue_.pop().transfer, transfer);
  EXPECT_TRUE(queue_.empty());
}

}  // namespace
}  // namespace spillway
