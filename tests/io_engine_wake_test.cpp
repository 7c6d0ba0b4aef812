// Waking an engine that waits, from any thread.
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/aligned_buffer.h"
#include "support/io_harness.h"
#include "support/kernel_calls.h"

namespace spillway {
namespace {

using namespace spillway::testing;

class IoEngineWakeTest : public ::testing::TestWithParam<EngineCase> {};

INSTANTIATE_TEST_SUITE_P(BuiltIn, IoEngineWakeTest, ::testing::ValuesIn(engine_cases()), label_of);

// An engine with a request in flight that does not end until it is told to.
class HeldRequest {
 public:
  explicit HeldRequest(const EngineCase& engine) : engine_(engine.make(4)) {
    EXPECT_TRUE(engine_->queue({IoOp::read, held_.fd(), 0, data_.data(), kPage, 1}));
    engine_->submit();
  }
  ~HeldRequest() {
    if (!released_) held_.release();
  }

  IoEngine& engine() { return *engine_; }
  int wait() { return engine_->reap(results_, 1); }
  void release() {
    released_ = true;
    held_.release();
  }

 private:
  HeldDescriptor held_;
  AlignedBuffer data_{kPage};
  std::unique_ptr<IoEngine> engine_;
  std::vector<IoResult> results_{4};
  bool released_ = false;
};

TEST_P(IoEngineWakeTest, TheRequestOfTheseTestsEndsOnlyWhenReleased) {
  HeldRequest held(GetParam());
  std::vector<IoResult> results(4);
  EXPECT_EQ(held.engine().reap(results, 0), 0);
  held.release();
  EXPECT_EQ(held.wait(), 1);
}

TEST_P(IoEngineWakeTest, AReapThatWaitsReturns) {
  HeldRequest held(GetParam());
  for (int i = 0; i < 3; ++i) {
    std::thread waker([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for the other to be waiting; right either way
      held.engine().wake();
    });
    EXPECT_EQ(held.wait(), 0);
    waker.join();
  }
}

TEST_P(IoEngineWakeTest, AReapThatIsYetToComeReturnsAndTheOneAfterItWaits) {
  HeldRequest held(GetParam());
  held.engine().wake();
  held.engine().wake();
  EXPECT_EQ(held.wait(), 0);
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // in which a second answer to the wake() would come
    held.release();
  });
  EXPECT_EQ(held.wait(), 1);
  release.join();
}

TEST_P(IoEngineWakeTest, AReapThatNeedNotWaitGivesItsResultsAllTheSame) {
  HeldRequest held(GetParam());
  const ScratchFile file;
  AlignedBuffer data(kPage);
  ASSERT_TRUE(held.engine().queue({IoOp::write, file.fd(), 0, data.data(), kPage, 2}));
  held.engine().submit();
  std::vector<IoResult> results(4);
  int count = 0;
  while (count == 0) {
    held.engine().wake();
    count = held.engine().reap(results, 1);
  }
  EXPECT_EQ(count, 1);
  EXPECT_EQ(results[0].tag, 2u);
}

// Nothing is lost, whatever the moment.
TEST_P(IoEngineWakeTest, ResultsComeThroughAStormOfWakes) {
  const ScratchFile file;
  AlignedBuffer data(8 * kPage);
  const auto engine = GetParam().make(8);
  std::atomic<bool> stop{false};
  std::thread waker([&] {
    while (!stop) {
      engine->wake();
      std::this_thread::yield();
    }
  });
  std::vector<IoResult> results(8);
  for (int round = 0; round < 100; ++round) {
    for (std::int64_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(engine->queue({IoOp::write, file.fd(), i * kPage, data.data() + i * kPage, kPage, static_cast<std::uint64_t>(i)}));
    }
    unsigned seen = 0;
    while (seen != 0xff) {
      const int count = engine->reap(results, 8);
      for (int i = 0; i < count; ++i) {
        const IoResult& result = results[static_cast<std::size_t>(i)];
        EXPECT_EQ(result.bytes, kPage);
        EXPECT_EQ(seen & 1u << result.tag, 0u);
        seen |= 1u << result.tag;
      }
    }
  }
  stop = true;
  waker.join();
}

}  // namespace
}  // namespace spillway
