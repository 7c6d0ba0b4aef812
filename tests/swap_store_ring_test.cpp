// How a path's ring serves several channels: who goes first, who is woken, what is given up, and what happens when the engine
// itself fails. The disk is held, so that the order in which blocks reach it can be looked at.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/gated_engine.h"
#include "support/swap_harness.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using namespace spillway::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kPage = SwapStore::alignment;

class SwapStoreRing : public ::testing::Test {
 protected:
  // Extents of eight blocks, all written.
  void make(int depth, SwapStoreOptions options = {}, int extents = 4) {
    const SwapStoreOptions sized = store_options(folder_.path(), std::vector<std::int64_t>(static_cast<std::size_t>(extents), 8 * kPage));
    if (options.paths.empty()) options.paths = sized.paths;
    options.extents = sized.extents;
    options.block_bytes = kPage;
    options.engine.depth = depth;
    options.make_engine = [this](const IoEngineOptions& engine) { return std::make_unique<GatedEngine>(gate_, engine.depth); };
    store_ = make_swap_store(options);
    for (int e = 0; e < extents; ++e) buffers_.emplace_back(8 * kPage).fill(static_cast<std::uint64_t>(e) + 1);
    const auto channel = store_->open_channel(IoPriority::streaming);
    for (int e = 0; e < extents; ++e) write_now(*channel, e, buffers_[static_cast<std::size_t>(e)]);
    gate_.close();
    gate_.forget();
  }

  void start(SwapChannel& channel, IoOp op, int extent) {
    std::byte* data = buffers_[static_cast<std::size_t>(extent)].data();
    if (op == IoOp::read) channel.read(extent, data, static_cast<std::uint64_t>(extent));
    if (op == IoOp::write) channel.write(extent, data, static_cast<std::uint64_t>(extent));
  }

  // The extents that blocks belong to, by their buffers.
  std::vector<int> extents_of(const std::vector<IoRequest>& requests) const {
    std::vector<int> extents;
    for (const IoRequest& request : requests) {
      for (std::size_t e = 0; e < buffers_.size(); ++e) {
        if (request.data >= buffers_[e].data() && request.data < buffers_[e].data() + buffers_[e].size()) extents.push_back(static_cast<int>(e));
      }
    }
    return extents;
  }

  TestFolder folder_;
  Gate gate_;
  std::vector<AlignedBuffer> buffers_;
  std::unique_ptr<SwapStore> store_;  // before what it uses
};

TEST_F(SwapStoreRing, AReadTheStepWaitsForOvertakesQueuedWrites) {
  make(2);
  const auto writes = store_->open_channel(IoPriority::streaming), fetches = store_->open_channel(IoPriority::urgent);
  start(*writes, IoOp::write, 0);
  start(*writes, IoOp::write, 1);
  gate_.queued(2);
  start(*fetches, IoOp::read, 2);
  gate_.allow(8);
  // Two writes were on the disk already; the read's blocks come next, all of them.
  EXPECT_THAT(extents_of(gate_.queued(10)), ElementsAre(0, 0, 2, 2, 2, 2, 2, 2, 2, 2));
  gate_.open();
  EXPECT_THAT(drain(*fetches), ElementsAre(2));
  EXPECT_THAT(drain(*writes), ElementsAre(0, 1));
}

TEST_F(SwapStoreRing, ReadsAndWritesTakeTurnsAndBackgroundTakesWhatIsLeft) {
  make(1);
  const auto reads = store_->open_channel(IoPriority::streaming), writes = store_->open_channel(IoPriority::streaming),
             snapshots = store_->open_channel(IoPriority::background);
  start(*snapshots, IoOp::read, 3);
  EXPECT_THAT(extents_of(gate_.queued_when_waiting(1)), ElementsAre(3));
  start(*reads, IoOp::read, 0);
  start(*writes, IoOp::write, 1);
  gate_.allow(9);
  EXPECT_THAT(extents_of(gate_.queued(10)), ElementsAre(3, 0, 1, 0, 1, 0, 1, 0, 3, 1)) << "a background block after seven others";
  gate_.open();
  drain(*reads);
  drain(*writes);
  EXPECT_THAT(drain(*snapshots), ElementsAre(3));
}

TEST_F(SwapStoreRing, ATransferThatComesWhileOthersAreInFlightStartsAtOnce) {
  make(12);
  const auto channel = store_->open_channel(IoPriority::streaming);
  start(*channel, IoOp::read, 0);
  EXPECT_EQ(gate_.queued_when_waiting(8).size(), 8u);
  start(*channel, IoOp::read, 1);
  EXPECT_EQ(gate_.queued_when_waiting(12).size(), 12u) << "none has finished, and the disk takes no more";
  gate_.open();
  drain(*channel);
}

TEST_F(SwapStoreRing, WithoutOverlapABatchEndsBeforeTheNextBegins) {
  SwapStoreOptions options;
  options.overlap_events = false;
  make(4, options);
  const auto channel = store_->open_channel(IoPriority::streaming);
  start(*channel, IoOp::read, 0);
  EXPECT_EQ(gate_.queued_when_waiting(4).size(), 4u);
  gate_.allow(3);
  EXPECT_EQ(gate_.queued_when_waiting(1).size(), 4u);
  gate_.allow(1);
  EXPECT_EQ(gate_.queued_when_waiting(4).size(), 8u);
  gate_.open();
  EXPECT_THAT(drain(*channel), ElementsAre(0));
}

TEST_F(SwapStoreRing, SubmitsEachRequestByItselfUnlessAskedNotTo) {
  for (const bool single : {false, true}) {
    gate_.open();
    buffers_.clear();
    SwapStoreOptions options;
    if (!single) options.single_submit = false;
    make(8, options);
    const auto channel = store_->open_channel(IoPriority::streaming);
    start(*channel, IoOp::read, 0);
    gate_.queued_when_waiting(8);
    EXPECT_EQ(gate_.submits_with_requests(), single ? 8 : 1);
    gate_.open();
    drain(*channel);
  }
}

// All that was asked of the path fails with a name, at once and later; nothing hangs.
TEST_F(SwapStoreRing, AnEngineThatFailsFailsEveryTransferByName) {
  make(2);
  const auto reads = store_->open_channel(IoPriority::streaming), fetches = store_->open_channel(IoPriority::urgent);
  start(*reads, IoOp::read, 0);
  start(*reads, IoOp::write, 1);
  gate_.queued_when_waiting(2);
  start(*fetches, IoOp::read, 2);
  gate_.break_engines("the ring tore");
  int failures = 0;
  for (SwapChannel* channel : {reads.get(), reads.get(), fetches.get()}) {
    const std::string error = io_error_of([&] { channel->completions(true); });
    EXPECT_THAT(error, AllOf(StartsWith("[nvme] "), HasSubstr(folder_.path()), HasSubstr("the I/O engine failed: the ring tore; resume")));
    ++failures;
  }
  EXPECT_EQ(failures, 3);
  EXPECT_EQ(reads->in_flight() + fetches->in_flight(), 0);
  start(*reads, IoOp::read, 3);
  EXPECT_THAT(io_error_of([&] { reads->completions(true); }),
              StartsWith("[nvme] read tile 3 of block 3 (" + folder_.path() + "): the I/O engine failed: the ring tore"));
  EXPECT_THAT(io_error_of([&] { start(*reads, IoOp::write, 3); }), HasSubstr("not begun, since another transfer has failed: [nvme] "));
}

TEST_F(SwapStoreRing, AnEngineThatCannotBeMadeIsToldAtTheStart) {
  auto options = store_options(folder_.path(), {kPage});
  options.rings = 3;
  int made = 0;
  options.make_engine = [&](const IoEngineOptions& engine) -> std::unique_ptr<IoEngine> {
    EXPECT_TRUE(engine.one_thread);
    EXPECT_EQ(engine.files.size(), 1u);
    if (++made == 3) throw IoError("no more rings");
    return std::make_unique<GatedEngine>(gate_, engine.depth);
  };
  EXPECT_EQ(io_error_of([&] { make_swap_store(options); }), "no more rings");
}

}  // namespace
}  // namespace spillway
