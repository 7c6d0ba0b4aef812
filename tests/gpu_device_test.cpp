// What the Device contract promises, of every device: streams, events, copies, arenas. SPILLWAY_TEST_DEVICE=cuda puts the
// CUDA device under test, a card or the simulation.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/device.h"
#include "spillway/error.h"
#include "support/error_of.h"

namespace spillway {
namespace {

using ::spillway::testing::error_of;

bool on_cuda() {
  const char* const asked = std::getenv("SPILLWAY_TEST_DEVICE");
  return asked != nullptr && std::string_view(asked) == "cuda";
}

std::unique_ptr<Device> device() { return on_cuda() ? make_cuda_device(0) : make_host_device({.threads = 2, .chaos_max_delay_us = 50}); }

TEST(Device, HasAName) { EXPECT_EQ(device()->name(), on_cuda() ? "cuda:0" : "host"); }

TEST(DeviceArena, IsZeroAndAligned) {
  const auto d = device();
  const auto stream = d->make_stream("d2h");
  std::byte* const pinned = d->allocate_pinned(5000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pinned) % 4096, 0u);
  EXPECT_THAT(std::vector(pinned, pinned + 5000), ::testing::Each(std::byte{0}));
  for (const std::int64_t bytes : {1, 4097, 1 << 20}) {
    std::byte* const arena = d->allocate_arena(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena) % 256, 0u);
    const std::int64_t looked_at = std::min<std::int64_t>(bytes, 5000);
    std::memset(pinned, 1, 5000);
    stream->copy(pinned, arena + bytes - looked_at, looked_at);
    stream->synchronize();
    EXPECT_THAT(std::vector(pinned, pinned + looked_at), ::testing::Each(std::byte{0})) << bytes;
  }
}

TEST(DeviceArena, SaysWhatCannotBeAllocated) {
  const auto d = device();
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1} << 60}) {
    EXPECT_THAT(error_of<MemoryError>([&] { d->allocate_arena(bytes); }), ::testing::HasSubstr("device arena"));
    EXPECT_THAT(error_of<MemoryError>([&] { d->allocate_pinned(bytes); }), ::testing::HasSubstr("pinned arena"));
  }
  EXPECT_NE(d->allocate_arena(1 << 20), nullptr) << "a refusal is no failure of the device";
}

TEST(DeviceArena, TakesFromWhatIsFree) {
  const auto d = device();
  const std::optional<std::int64_t> before = d->free_memory();
  ASSERT_EQ(before.has_value(), on_cuda());
  if (!before) return;
  d->allocate_arena(std::int64_t{64} << 20);
  EXPECT_LE(*d->free_memory(), *before - (std::int64_t{64} << 20));
}

TEST(Stream, CopiesBytesEveryWay) {
  const auto d = device();
  const auto stream = d->make_stream("h2d");
  constexpr std::int64_t kBytes = 1 << 19;
  std::byte *const arena = d->allocate_arena(2 * kBytes), *const pinned = d->allocate_pinned(3 * kBytes);
  for (int i = 0; i < kBytes; ++i) pinned[i] = static_cast<std::byte>(i * 7 >> 2);
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, std::int64_t{511}, std::int64_t{4097}, kBytes - 8}) {
    stream->copy(arena + 3, pinned, bytes);
    stream->copy(arena + kBytes + 1, arena + 3, bytes);
    stream->copy(pinned + kBytes, arena + kBytes + 1, bytes);
    stream->copy(pinned + 2 * kBytes, pinned + kBytes, bytes);
    stream->synchronize();
    EXPECT_EQ(std::memcmp(pinned + 2 * kBytes, pinned, static_cast<std::size_t>(bytes)), 0) << bytes;
  }
}

TEST(Stream, CallsInOrder) {
  const auto d = device();
  const auto stream = d->make_stream("test");
  std::vector<int> order;
  auto* const seen = &order;
  for (int i = 0; i < 100; ++i) stream->call([seen, i] { seen->push_back(i); });
  stream->synchronize();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(Stream, ReturnsBeforeItsWorkIsDone) {
  const auto d = device();
  const auto stream = d->make_stream("test");
  struct {
    std::atomic<bool> open{false}, ran{false};
  } gate;
  stream->call([g = &gate] {
    g->open.wait(false);
    g->ran = true;
  });
  EXPECT_FALSE(gate.ran);
  gate.open = true;
  gate.open.notify_one();
  stream->synchronize();
  EXPECT_TRUE(gate.ran);
}

TEST(Stream, LosesNoCallWhenItsQueueIsFull) {
  const auto d = device();
  const auto stream = d->make_stream("test");
  constexpr int kCalls = 3000;
  int in_turn = 0;
  for (int i = 0; i < kCalls; ++i) {
    stream->call([n = &in_turn, i] {
      if (*n == i) ++*n;
    });
  }
  stream->synchronize();
  EXPECT_EQ(in_turn, kCalls);
}

TEST(Stream, FinishesWhatIsQueuedBeforeItGoes) {
  const auto d = device();
  int count = 0;
  {
    const auto stream = d->make_stream("test");
    for (int i = 0; i < 50; ++i) stream->call([c = &count] { ++*c; });
  }
  EXPECT_EQ(count, 50);
}

// Host memory that a copy has not reached yet would go while it is still to come.
TEST(Stream, FinishesItsCopiesBeforeItGoes) {
  const auto d = device();
  constexpr std::int64_t kBytes = 1 << 16;
  std::byte *const arena = d->allocate_arena(kBytes), *const from = d->allocate_pinned(kBytes), *const to = d->allocate_pinned(kBytes);
  std::memset(from, 7, kBytes);
  {
    const auto stream = d->make_stream("test");
    stream->copy(arena, from, kBytes);
    stream->copy(to, arena, kBytes);
  }
  EXPECT_THAT(std::vector(to, to + kBytes), ::testing::Each(std::byte{7}));
}

TEST(Stream, TakesOverTheErrorOfACall) {
  const auto d = device();
  const auto stream = d->make_stream("test");
  bool ran = false;
  error_of<CommError>([&] {
    stream->call([] { throw CommError("rank 1 is gone"); });
    stream->call([] { throw CommError("and so is rank 2"); });  // a CUDA device may know of the first already
    stream->call([r = &ran] { *r = true; });
  });
  EXPECT_EQ(error_of<CommError>([&] { stream->synchronize(); }), "rank 1 is gone");
  const std::string again = error_of<CommError>([&] {
    stream->call([r = &ran] { *r = true; });
    stream->synchronize();
  });
  EXPECT_EQ(again, "rank 1 is gone");
  EXPECT_FALSE(ran) << "work after a failure is skipped";
}

TEST(Event, OrdersStreams) {
  const auto d = device();
  const auto a = d->make_stream("a"), b = d->make_stream("b");
  const auto filled = d->make_event(), used = d->make_event();
  struct {
    int buffer = 0;  // not atomic on purpose
    std::vector<int> seen;
  } data;
  for (int i = 1; i <= 20; ++i) {
    a->wait(*used);
    a->call([t = &data, i] { t->buffer = i; });
    a->record(*filled);
    b->wait(*filled);
    b->call([t = &data] { t->seen.push_back(t->buffer); });
    b->record(*used);
  }
  b->synchronize();
  ASSERT_EQ(data.seen.size(), 20u);
  for (int i = 1; i <= 20; ++i) EXPECT_EQ(data.seen[static_cast<std::size_t>(i) - 1], i);
}

TEST(Event, OrdersCopiesOfTwoStreams) {
  const auto d = device();
  const auto down = d->make_stream("h2d"), up = d->make_stream("d2h");
  const auto there = d->make_event(), back = d->make_event();
  constexpr std::int64_t kBytes = 1 << 16;
  std::byte *const arena = d->allocate_arena(kBytes), *const from = d->allocate_pinned(kBytes), *const to = d->allocate_pinned(kBytes);
  for (int i = 1; i <= 10; ++i) {
    std::memset(from, i, kBytes);
    down->wait(*back);
    down->copy(arena, from, kBytes);
    down->record(*there);
    up->wait(*there);
    up->copy(to, arena, kBytes);
    up->record(*back);
    back->synchronize();
    EXPECT_EQ(to[0], std::byte(i));
    EXPECT_EQ(to[kBytes - 1], std::byte(i));
  }
}

TEST(Event, UnrecordedIsNothingToWaitFor) {
  const auto d = device();
  const auto stream = d->make_stream("test");
  const auto event = d->make_event();
  EXPECT_TRUE(event->finished());
  event->synchronize();
  stream->wait(*event);
  stream->synchronize();
}

TEST(Event, AWaitMeansTheLastRecordBeforeIt) {
  const auto d = device();
  const auto a = d->make_stream("a"), b = d->make_stream("b");
  const auto event = d->make_event();
  std::atomic<bool> open{false};
  a->record(*event);
  b->wait(*event);  // of the first record
  a->call([o = &open] { o->wait(false); });
  a->record(*event);
  b->synchronize();  // comes back although the second record cannot complete yet
  EXPECT_FALSE(event->finished());
  open = true;
  open.notify_one();
  event->synchronize();  // of the second record
  EXPECT_TRUE(event->finished());
}

TEST(Event, MayBeDestroyedBeforeItsWaitHasRun) {
  const auto d = device();
  const auto a = d->make_stream("a"), b = d->make_stream("b");
  struct {
    int value = 0, seen = 0;
  } data;
  {
    const auto event = d->make_event();
    a->call([t = &data] { t->value = 7; });
    a->record(*event);
    b->wait(*event);
  }
  b->call([t = &data] { t->seen = t->value; });
  b->synchronize();
  EXPECT_EQ(data.seen, 7);
}

// The device's clock and the host's are set by each other no better than a few microseconds, and no better than the
// simulation's delays where it delays.
TEST(Event, TellsWhenTheWorkFinished) {
  constexpr std::int64_t kSlack_ns = 5'000'000;
  const auto d = device();
  const auto stream = d->make_stream("test");
  const auto first = d->make_event(), second = d->make_event();
  const std::int64_t before = d->now_ns();
  struct {
    Device* device;
    std::int64_t during = 0;
  } data{d.get()};
  stream->record(*first);
  stream->call([t = &data] { t->during = t->device->now_ns(); });
  stream->record(*second);
  second->synchronize();
  first->synchronize();
  EXPECT_LE(before, first->time_ns() + kSlack_ns);
  EXPECT_LE(first->time_ns(), data.during + kSlack_ns);
  EXPECT_LE(data.during, second->time_ns() + kSlack_ns);
  EXPECT_LE(second->time_ns(), d->now_ns() + kSlack_ns);
  EXPECT_LE(first->time_ns(), second->time_ns()) << "of one stream";
}

TEST(Event, ManyThreadsMaySynchronize) {
  const auto d = device();
  const auto stream = d->make_stream("test");
  const auto event = d->make_event();
  int value = 0;
  stream->call([v = &value] { *v = 3; });
  stream->record(*event);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      event->synchronize();
      if (value == 3) ++right;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 8);
}

TEST(Event, CarriesTheErrorOfItsWork) {
  const auto d = device();
  const auto a = d->make_stream("a"), b = d->make_stream("b");
  const auto event = d->make_event();
  const std::string of_a = error_of<DeviceError>([&] {
    a->call([] { throw DeviceError("broken"); });
    a->record(*event);  // a CUDA device may know of it already
    event->synchronize();
  });
  EXPECT_EQ(of_a, "broken");
  const std::string of_b = error_of<DeviceError>([&] {
    b->wait(*event);
    b->synchronize();
  });
  EXPECT_EQ(of_b, "broken");
}

}  // namespace
}  // namespace spillway
