// What a ring gives up, and when it is delivered: transfers of closed mailboxes, and writes after a failure.
#include <cerrno>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nvme/mailbox.h"
#include "nvme/path_ring.h"
#include "nvme/swap_file.h"
#include "support/aligned_buffer.h"
#include "support/gated_engine.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using namespace spillway::testing;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kPage = SwapStore::alignment;

class PathRingTest : public ::testing::Test {
 protected:
  PathRingTest() : file_(folder_.path()) {
    file_.allocate(64 * kPage);
    gate_.close();
    PathRingOptions options;
    options.fd = file_.fd();
    options.engine.depth = 1;
    options.make_engine = [this](const IoEngineOptions& engine) { return std::make_unique<GatedEngine>(gate_, engine.depth); };
    options.describe = [](const RingTransfer& transfer) { return "error " + std::to_string(transfer.error); };
    options.block_bytes = kPage;
    ring_.emplace(options, activity_, failure_);
  }
  ~PathRingTest() override { gate_.open(); }

  RingTransfer transfer(IoOp op, Mailbox& mailbox, std::int64_t pages) {
    return {.op = op, .bytes = pages * kPage, .data = data_.data(), .mailbox = &mailbox};
  }

  std::vector<RingTransfer*> take(Mailbox& mailbox, std::size_t count) {
    std::vector<RingTransfer*> taken;
    while (taken.size() < count) {
      for (TransferList delivered = mailbox.take(true); !delivered.empty();) taken.push_back(&delivered.pop());
    }
    return taken;
  }

  TestFolder folder_;
  SwapFile file_;
  AlignedBuffer data_{64 * kPage};
  Gate gate_;
  PathActivity activity_;
  FirstFailure failure_;
  std::optional<PathRing> ring_;
};

TEST_F(PathRingTest, GivesUpWhatAClosedMailboxHasWaitingAndEndsWhatIsOnTheDisk) {
  Mailbox closed, other;
  RingTransfer half_done = transfer(IoOp::write, closed, 4), waiting = transfer(IoOp::write, closed, 4), wanted = transfer(IoOp::write, other, 2);
  ring_->push(half_done);
  EXPECT_EQ(gate_.queued_when_waiting(1).size(), 1u);
  ring_->push(waiting);
  ring_->push(wanted);
  EXPECT_EQ(ring_->pending_bytes(), 10 * kPage);
  closed.close();
  ring_->drop_closed();
  gate_.allow(1);
  EXPECT_THAT(take(closed, 2), UnorderedElementsAre(&half_done, &waiting));
  EXPECT_EQ(half_done.error, kAbandoned);
  EXPECT_EQ(waiting.error, kAbandoned);
  EXPECT_FALSE(failure_.happened()) << "giving up is no failure";
  gate_.open();
  EXPECT_THAT(take(other, 1), ElementsAre(&wanted));
  EXPECT_EQ(wanted.error, 0);
  EXPECT_EQ(gate_.queued(0).size(), 3u) << "one block of the first, none of the second, two of the third";
  EXPECT_EQ(ring_->pending_bytes(), 0);
}

TEST_F(PathRingTest, GivesUpWritesOnceSomethingHasFailedAndGoesOnReading) {
  Mailbox writes, reads;
  RingTransfer on_the_disk = transfer(IoOp::write, writes, 1), waiting = transfer(IoOp::write, writes, 1), read = transfer(IoOp::read, reads, 1);
  ring_->push(on_the_disk);
  EXPECT_EQ(gate_.queued_when_waiting(1).size(), 1u);
  ring_->push(waiting);
  ring_->push(read);
  failure_.note([] { return std::string("another path broke"); });
  gate_.open();
  EXPECT_THAT(take(reads, 1), ElementsAre(&read));
  EXPECT_EQ(read.error, 0);
  EXPECT_THAT(take(writes, 2), UnorderedElementsAre(&on_the_disk, &waiting));
  EXPECT_EQ(on_the_disk.error, 0);
  EXPECT_EQ(waiting.error, kAbandoned);
  EXPECT_EQ(failure_.text(), "another path broke");
}

TEST_F(PathRingTest, NotesTheFirstFailureOnly) {
  Mailbox mailbox;
  RingTransfer beyond = transfer(IoOp::read, mailbox, 1), other = transfer(IoOp::read, mailbox, 1);
  beyond.offset = 64 * kPage;
  ring_->push(beyond);
  gate_.open();
  EXPECT_THAT(take(mailbox, 1), ElementsAre(&beyond));
  EXPECT_EQ(beyond.error, ENODATA);
  EXPECT_EQ(beyond.error_offset, 64 * kPage);
  EXPECT_EQ(failure_.text(), "error " + std::to_string(ENODATA));
  gate_.break_engines("broken");
  ring_->push(other);
  EXPECT_THAT(take(mailbox, 1), ElementsAre(&other));
  EXPECT_EQ(other.error, kEngineFailed);
  EXPECT_EQ(ring_->engine_failure(), "broken");
  EXPECT_EQ(failure_.text(), "error " + std::to_string(ENODATA));
}

}  // namespace
}  // namespace spillway
