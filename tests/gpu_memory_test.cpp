// Parts of the CUDA device by themselves: host memory that is registered in pieces, and times of events counted from bases.
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda_sim/cuda_sim.h"
#include "gpu/event_clock.h"
#include "gpu/pinned_arena.h"
#include "gpu/stream.h"
#include "spillway/error.h"

namespace spillway::cuda {
namespace {

class PinnedInPieces : public testing::Test {
 protected:
  PinnedInPieces() {
    cuda_sim::Settings settings = cuda_sim::settings();
    settings.largest_pinning = 8192;
    cuda_sim::set_settings(settings);
  }
  ~PinnedInPieces() override { cuda_sim::reset(); }

  static constexpr std::int64_t kBytes = 20480;
};

TEST_F(PinnedInPieces, TakesTheFirstSizeThatCudaTakes) {
  Context context(0);
  cuda_sim::reset_statistics();
  constexpr std::int64_t kSizes[] = {1 << 20, 16384, 8192, 4096};
  const PinnedArena arena(context, kBytes, kSizes);
  EXPECT_EQ(cuda_sim::statistics().allocations, 1 + 1 + 3) << "refused, refused, then three pieces";
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{8191}, std::int64_t{8192}, kBytes - 1}) {
    const Region* region = context.memory.find(arena.data() + at);
    ASSERT_NE(region, nullptr) << at;
    EXPECT_EQ(region->place, Place::pinned);
    EXPECT_EQ(region->begin, arena.data() + at / 8192 * 8192) << at;
  }
  EXPECT_EQ(context.memory.find(arena.data() + kBytes), nullptr);
}

TEST_F(PinnedInPieces, GivesUpWhenNoSizeWillDo) {
  Context context(0);
  constexpr std::int64_t kSizes[] = {1 << 20, 16384};
  EXPECT_THROW(PinnedArena(context, kBytes, kSizes), MemoryError);
}

TEST_F(PinnedInPieces, CopiesAcrossBordersAreCutThere) {
  Context context(0);
  constexpr std::int64_t kSizes[] = {8192};
  const PinnedArena from(context, kBytes, kSizes), to(context, kBytes, kSizes);
  CudaStream stream(context, "h2d", Priority::normal);
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, kBytes), cudaSuccess);
  context.memory.add(device, kBytes, Place::device);
  for (std::int64_t i = 0; i < kBytes; ++i) from.data()[i] = static_cast<std::byte>(i * 13 >> 3);
  cuda_sim::reset_statistics();
  stream.copy(device, from.data() + 4096, 12288);  // 4096 + 8192
  stream.copy(to.data() + 100, device, 12288);     // 8092 + 4196
  stream.synchronize();
  EXPECT_EQ(cuda_sim::statistics().copies, 4);
  EXPECT_EQ(std::memcmp(to.data() + 100, from.data() + 4096, 12288), 0);
  ASSERT_EQ(cudaFree(device), cudaSuccess);
}

class EventTimes : public testing::TestWithParam<double> {};

INSTANTIATE_TEST_SUITE_P(BasesThatAge, EventTimes, testing::Values(0.0, EventClock::kOldBase_ms));

// Whichever base an event's time is counted from, and however often it is asked for.
TEST_P(EventTimes, AreThoseOfTheHost) {
  constexpr std::int64_t kSlack_ns = 5'000'000;  // a busy machine may stop a thread in the middle of a measurement
  Context context(0);
  EventClock clock(GetParam());
  CudaStream stream(context, "test", Priority::normal);
  struct Recorded {
    EventHandle event = make_timed_event();
    std::int64_t before = 0, after = 0;
  };
  std::vector<Recorded> events(20);
  const auto check = [&](const Recorded& one) {
    const std::int64_t time = clock.time_ns(one.event.get(), one.before);
    EXPECT_GE(time, one.before - kSlack_ns);
    EXPECT_LE(time, one.after + kSlack_ns);
  };
  for (Recorded& one : events) {
    one.before = monotonic_ns();
    ASSERT_EQ(cudaEventRecord(one.event.get(), stream.handle()), cudaSuccess);
    ASSERT_EQ(cudaEventSynchronize(one.event.get()), cudaSuccess);
    one.after = monotonic_ns();
    check(one);
  }
  for (const Recorded& one : events) check(one);  // the first ones are older than any base that is kept
}

}  // namespace
}  // namespace spillway::cuda
