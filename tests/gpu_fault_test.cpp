// What the CUDA device makes of a machine that lets it down. The simulation does so on demand.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda_sim/cuda_sim.h"
#include "spillway/device.h"
#include "spillway/error.h"
#include "spillway/ops.h"
#include "support/error_of.h"

namespace spillway {
namespace {

using ::spillway::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

class GpuFault : public ::testing::Test {
 protected:
  // A failed device does not recover; the simulation's does, for the next test.
  ~GpuFault() override { cuda_sim::reset(); }

  template <class F>
  void set(F&& change) {
    cuda_sim::Settings settings = cuda_sim::settings();
    change(settings);
    cuda_sim::set_settings(settings);
  }
};

TEST_F(GpuFault, SaysWhatKindOfDriverIsMissing) {
  const std::pair<cuda_sim::Driver, const char*> drivers[] = {
      {cuda_sim::Driver::absent, "install or update it"}, {cuda_sim::Driver::stub, "LD_LIBRARY_PATH"}, {cuda_sim::Driver::no_device, "CUDA_VISIBLE_DEVICES"}};
  for (const auto& [driver, advice] : drivers) {
    set([&, driver = driver](auto& s) { s.driver = driver; });
    EXPECT_THAT(why_no_cuda_device(), HasSubstr(advice));
    EXPECT_EQ(cuda_device_count(), 0);
    EXPECT_TRUE(cuda_devices().empty());
    EXPECT_THAT(error_of<DeviceError>([] { make_cuda_device(0); }), AllOf(HasSubstr("open device 0"), HasSubstr(advice), HasSubstr("--device host")));
  }
}

TEST_F(GpuFault, RefusesADeviceThatIsNotThere) {
  EXPECT_THAT(error_of<DeviceError>([] { make_cuda_device(3); }), HasSubstr("open device 3: invalid device ordinal"));
}

TEST_F(GpuFault, MemoryThatIsNotFreeIsAMemoryErrorAndNoFailure) {
  const auto d = make_cuda_device(0);
  set([](auto& s) { s.fail_allocation_after = 1 << 20; });
  EXPECT_THAT(error_of<MemoryError>([&] { d->allocate_arena(2 << 20); }),
              AllOf(HasSubstr("allocate 2.0 MiB for the device arena"), HasSubstr("can be had"), HasSubstr("spillway.device_memory")));
  EXPECT_NE(d->allocate_arena(1 << 19), nullptr);
}

TEST_F(GpuFault, MemoryThatCannotBePinnedIsRefusedAndNotUsedAsItIs) {
  const auto d = make_cuda_device(0);
  set([](auto& s) { s.refuse_pinning = true; });
  EXPECT_THAT(error_of<MemoryError>([&] { d->allocate_pinned(2 << 20); }), AllOf(HasSubstr("register 2.0 MiB"), HasSubstr("spillway.host_memory"), HasSubstr("ulimit -l")));
  set([](auto& s) { s.refuse_pinning = false; });
  EXPECT_NE(d->allocate_pinned(2 << 20), nullptr);
}

TEST_F(GpuFault, CopiesOnlyWhatCanBeCopiedAsynchronously) {
  const auto d = make_cuda_device(0);
  const auto stream = d->make_stream("h2d");
  constexpr std::int64_t kBytes = 8192;
  std::byte *const arena = d->allocate_arena(kBytes), *const pinned = d->allocate_pinned(kBytes);
  std::vector<std::byte> pageable(kBytes);
  cuda_sim::reset_statistics();
  const auto refused = AllOf(HasSubstr("copy on stream 'h2d' of cuda:0"), HasSubstr("registered host memory"));
  EXPECT_THAT(error_of<DeviceError>([&] { stream->copy(arena, pageable.data(), 16); }), refused);
  EXPECT_THAT(error_of<DeviceError>([&] { stream->copy(pageable.data(), arena, 16); }), refused);
  EXPECT_THAT(error_of<DeviceError>([&] { stream->copy(pinned, pageable.data(), 16); }), refused);
  EXPECT_THAT(error_of<DeviceError>([&] { stream->copy(arena, pinned + 1, kBytes); }), refused) << "leaves the pinned arena";
  EXPECT_THAT(error_of<DeviceError>([&] { stream->copy(arena + 1, pinned, kBytes); }), refused) << "leaves the device arena";
  EXPECT_EQ(cuda_sim::statistics().copies, 0) << "nothing of a refused copy is enqueued";
  stream->copy(arena, pinned, kBytes);
  stream->synchronize();
  EXPECT_EQ(cuda_sim::statistics().copies, 1);
  EXPECT_EQ(cuda_sim::statistics().pageable_copies, 0);
}

TEST_F(GpuFault, AFailedCallOfTheHostStopsTheWholeDevice) {
  const auto d = make_cuda_device(0);
  const auto a = d->make_stream("a"), b = d->make_stream("b");
  const auto before = d->make_event();
  b->record(*before);
  bool ran = false;
  a->call([] { throw CommError("rank 1 is gone"); });
  EXPECT_EQ(error_of<CommError>([&] { a->synchronize(); }), "rank 1 is gone");
  EXPECT_EQ(error_of<CommError>([&] { b->call([r = &ran] { *r = true; }); }), "rank 1 is gone");
  EXPECT_EQ(error_of<CommError>([&] { b->synchronize(); }), "rank 1 is gone");
  EXPECT_EQ(error_of<CommError>([&] { before->synchronize(); }), "rank 1 is gone");
  EXPECT_TRUE(before->finished()) << "synchronize() throws at once";
  EXPECT_EQ(error_of<CommError>([&] { d->allocate_arena(4096); }), "rank 1 is gone");
  EXPECT_FALSE(ran);
}

TEST_F(GpuFault, AnotherDeviceObjectStartsWithoutTheFailure) {
  {
    const auto d = make_cuda_device(0);
    const auto stream = d->make_stream("a");
    stream->call([] { throw DeviceError("broken"); });
    EXPECT_EQ(error_of<DeviceError>([&] { stream->synchronize(); }), "broken");
  }
  const auto d = make_cuda_device(0);
  d->make_stream("a")->synchronize();
}

TEST_F(GpuFault, TheHostWaitsForEventsAloneAndOnlyWhereItIsAsked) {
  const auto d = make_cuda_device(0);
  const auto a = d->make_stream("a"), b = d->make_stream("b");
  const auto there = d->make_event(), back = d->make_event();
  std::byte *const arena = d->allocate_arena(4096), *const pinned = d->allocate_pinned(4096);
  cuda_sim::reset_statistics();
  for (int i = 0; i < 20; ++i) {
    a->wait(*back);
    a->copy(arena, pinned, 4096);
    a->record(*there);
    b->wait(*there);
    b->copy(pinned, arena, 4096);
    b->call([] {});
    b->record(*back);
  }
  EXPECT_EQ(cuda_sim::statistics().synchronisations(), 0);
  EXPECT_EQ(cuda_sim::statistics().allocations, 0);
  b->synchronize();
  EXPECT_EQ(cuda_sim::statistics().synchronisations(), 1);
}

// The last ones: what a failed device holds it gives back no more.
TEST_F(GpuFault, OfTwoFailuresTheFirstIsThrown) {
  const auto d = make_cuda_device(0);
  const auto stream = d->make_stream("compute");
  const auto ops = d->make_ops(DType::f32);
  auto* const values = reinterpret_cast<float*>(d->allocate_arena(8192));
  set([](auto& s) { s.fail_launch = 1; });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of<Error>([&] {
                stream->call([] { throw CommError("rank 1 is gone"); });
                ops->accumulate(*stream, values, values + 1024, 1024);
                stream->synchronize();
              }),
              "rank 1 is gone");
  }
}

TEST_F(GpuFault, AFaultOfAKernelIsThrownAtTheNextWaitAndEverAfter) {
  const auto d = make_cuda_device(0);
  const auto stream = d->make_stream("compute"), other = d->make_stream("h2d");
  const auto event = d->make_event();
  const auto ops = d->make_ops(DType::f32);
  std::byte *const arena = d->allocate_arena(8192), *const pinned = d->allocate_pinned(4096);
  auto* const values = reinterpret_cast<float*>(arena);
  set([](auto& s) { s.fail_launch = 1; });
  const std::string first = error_of<DeviceError>([&] {
    ops->accumulate(*stream, values, values + 1024, 1024);
    stream->record(*event);
    event->synchronize();
  });
  EXPECT_THAT(first, AllOf(HasSubstr("[cuda]"), HasSubstr("cuda:0"), HasSubstr("compute-sanitizer")));
  EXPECT_EQ(error_of<DeviceError>([&] { stream->synchronize(); }), first);
  EXPECT_EQ(error_of<DeviceError>([&] { event->synchronize(); }), first);
  EXPECT_EQ(error_of<DeviceError>([&] { other->copy(arena, pinned, 16); }), first);
  EXPECT_EQ(error_of<DeviceError>([&] { other->call([] {}); }), first);
  EXPECT_EQ(error_of<DeviceError>([&] { ops->accumulate(*other, values, values + 1024, 1024); }), first);
  EXPECT_EQ(error_of<DeviceError>([&] { d->allocate_arena(4096); }), first);
}

}  // namespace
}  // namespace spillway
