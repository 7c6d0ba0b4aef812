// What only the host device has: timings to order, a clock of its own, failures of any work, operations. What every device
// promises is in gpu_device_test.cpp.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host/host_stream.h"
#include "spillway/device.h"
#include "spillway/error.h"
#include "spillway/ops.h"

namespace {

// Allocations of the thread that asks, counted while it asks.
thread_local bool counting = false;
thread_local int allocations = 0;

void* counted_malloc(std::size_t bytes) {
  if (counting) ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return counted_malloc(bytes); }
void* operator new[](std::size_t bytes) { return counted_malloc(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace spillway {
namespace {

std::unique_ptr<Device> device(int chaos_us = 0, std::uint64_t seed = 1) {
  return make_host_device({.threads = 2, .chaos_max_delay_us = chaos_us, .chaos_seed = seed});
}

// Arbitrary work on a stream, which the contract has no verb for.
template <class F>
void enqueue(Stream& stream, F&& work) {
  static_cast<host::HostStream&>(stream).enqueue(std::forward<F>(work));
}

void fail_on(Stream& stream, const char* text) {
  enqueue(stream, [text] { throw DeviceError(text); });
}

std::string error_of(Stream& stream) {
  try {
    stream.synchronize();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

TEST(HostStream, EnqueuingAllocatesNothing) {
  const auto d = device();
  const auto stream = d->make_stream("test");
  const auto ops = d->make_ops(DType::f32);
  const auto event = d->make_event();
  std::vector<float> a(64, 1.0f), b(64, 2.0f);
  counting = true;
  allocations = 0;
  for (int i = 0; i < 100; ++i) {
    stream->copy(a.data(), b.data(), 256);
    ops->accumulate(*stream, a.data(), b.data(), 64);
    ops->gelu_forward(*stream, {a.data(), b.data(), 64});
    stream->record(*event);
    stream->wait(*event);
    event->synchronize();
    stream->synchronize();
  }
  counting = false;
  EXPECT_EQ(allocations, 0);
}

TEST(HostEvent, OrdersStreamsUnderAnyTiming) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    const auto d = device(200, seed);
    const auto a = d->make_stream("a"), b = d->make_stream("b");
    const auto filled = d->make_event(), used = d->make_event();
    int buffer = 0;  // not atomic on purpose
    std::vector<int> seen;
    for (int i = 1; i <= 20; ++i) {
      a->wait(*used);
      enqueue(*a, [&buffer, i] { buffer = i; });
      a->record(*filled);
      b->wait(*filled);
      enqueue(*b, [&] { seen.push_back(buffer); });
      b->record(*used);
    }
    b->synchronize();
    ASSERT_EQ(seen.size(), 20u);
    for (int i = 1; i <= 20; ++i) EXPECT_EQ(seen[i - 1], i) << "seed " << seed;
  }
}

TEST(HostEvent, ARecordOnAnotherStreamWaitsForTheOneBefore) {
  const auto d = device();
  const auto a = d->make_stream("a"), b = d->make_stream("b");
  const auto event = d->make_event();
  std::atomic<bool> open{false};
  int done = 0;
  enqueue(*a, [&] {
    open.wait(false);
    done = 1;
  });
  a->record(*event);
  b->record(*event);
  open = true;
  open.notify_one();
  event->synchronize();
  EXPECT_EQ(done, 1);
}

TEST(HostEvent, TellsWhenTheWorkFinished) {
  const auto d = device();
  const auto stream = d->make_stream("test");
  const auto first = d->make_event(), second = d->make_event();
  const std::int64_t before = d->now_ns();
  std::int64_t during = 0;
  stream->record(*first);
  enqueue(*stream, [&] { during = d->now_ns(); });
  stream->record(*second);
  second->synchronize();
  first->synchronize();
  EXPECT_LE(before, first->time_ns());
  EXPECT_LE(first->time_ns(), during);
  EXPECT_LE(during, second->time_ns());
  EXPECT_LE(second->time_ns(), d->now_ns());
}

TEST(HostError, IsThrownAtTheWaitAndStopsTheStream) {
  const auto d = device();
  const auto stream = d->make_stream("test");
  bool ran = false;
  fail_on(*stream, "the first failure");
  fail_on(*stream, "the second failure");
  enqueue(*stream, [&] { ran = true; });
  EXPECT_EQ(error_of(*stream), "the first failure");
  EXPECT_FALSE(ran);
  EXPECT_EQ(error_of(*stream), "the first failure");
}

TEST(HostError, TravelsWithEventsToOtherStreams) {
  const auto d = device(30);
  const auto a = d->make_stream("a"), b = d->make_stream("b"), c = d->make_stream("c"), healthy = d->make_stream("healthy");
  const auto of_a = d->make_event(), of_b = d->make_event();
  bool ran = false;
  fail_on(*a, "broken");
  a->record(*of_a);
  b->wait(*of_a);
  enqueue(*b, [&] { ran = true; });
  b->record(*of_b);
  c->wait(*of_b);
  enqueue(*c, [&] { ran = true; });
  EXPECT_EQ(error_of(*c), "broken");
  EXPECT_EQ(error_of(*b), "broken");
  EXPECT_THROW(of_a->synchronize(), DeviceError);
  EXPECT_THROW(of_b->synchronize(), DeviceError);
  EXPECT_EQ(error_of(*healthy), "");
  EXPECT_FALSE(ran);
}

TEST(HostError, DoesNotReachAWaitForAnEarlierRecord) {
  const auto d = device();
  const auto a = d->make_stream("a"), b = d->make_stream("b"), c = d->make_stream("c");
  const auto event = d->make_event();
  a->record(*event);
  std::atomic<bool> open{false};
  enqueue(*b, [&] { open.wait(false); });
  b->wait(*event);  // of the healthy record; runs after the failed one is complete
  fail_on(*a, "later");
  a->record(*event);
  EXPECT_THROW(event->synchronize(), DeviceError);
  open = true;
  open.notify_one();
  EXPECT_EQ(error_of(*b), "");
  c->record(*event);  // a healthy stream: the event is healthy again
  event->synchronize();
}

TEST(HostError, AFailedStreamStillWaitsBeforeItsEventsComplete) {
  const auto d = device();
  const auto a = d->make_stream("a"), b = d->make_stream("b");
  const auto event = d->make_event();
  std::atomic<bool> open{false};
  int done = 0;
  enqueue(*a, [&] {
    open.wait(false);
    done = 1;
  });
  a->record(*event);
  fail_on(*b, "broken");
  b->wait(*event);
  open = true;
  open.notify_one();
  EXPECT_EQ(error_of(*b), "broken");
  EXPECT_EQ(done, 1);
}

TEST(HostOps, RunOnTheStreamInOrder) {
  const auto d = device(50);
  const auto stream = d->make_stream("test");
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto ops = d->make_ops(dtype);
    EXPECT_EQ(ops->dtype(), dtype);
    EXPECT_EQ(&ops->scratch_sizes(), &host_scratch_sizes());
    std::vector<float> sum(5000, 0.0f), one(5000, 1.0f), rounded(5000);
    double squares[2] = {};
    for (int i = 0; i < 3; ++i) ops->accumulate(*stream, sum.data(), one.data(), 5000);
    ops->finalize_gradient(*stream, {sum.data(), rounded.data(), squares, DType::bf16, DType::f32, 5000});
    stream->synchronize();
    EXPECT_THAT(rounded, testing::Each(3.0f));
    EXPECT_EQ(squares[0], 9.0 * kNormPiece);
    EXPECT_EQ(squares[1], 9.0 * (5000 - kNormPiece));
  }
}

TEST(HostOps, UpdateGivesTheBitsOfOptimizerUpdate) {
  const auto d = device();
  const auto stream = d->make_stream("test");
  const auto ops = d->make_ops(DType::bf16);
  const std::int64_t n = 200001;  // several pieces
  std::vector<float> gradient(n), state[2][3];
  std::vector<bf16> weight[2];
  for (std::int64_t i = 0; i < n; ++i) gradient[i] = static_cast<float>(i % 1013 - 500) * 1e-3f;
  const OptimizerParams params{.learning_rate = 1e-2, .beta2 = 0.95, .weight_decay = 0.1, .step = 3, .gradient_scale = 0.5f};
  OptimizerTile tile[2];
  for (int way = 0; way < 2; ++way) {
    state[way][0].assign(n, 0.5f);
    state[way][1].assign(n, 0.01f);
    state[way][2].assign(n, 0.02f);
    weight[way].resize(n);
    tile[way] = {.master = state[way][0].data(), .moments = {state[way][1].data(), state[way][2].data()}, .gradient = gradient.data(),
                 .gradient_dtype = DType::f32, .weight = weight[way].data(), .weight_dtype = DType::bf16, .n = n};
  }
  ops->optimizer_update(*stream, tile[0], params);
  stream->synchronize();
  optimizer_update(tile[1], params);
  for (int part = 0; part < 3; ++part) EXPECT_EQ(state[0][part], state[1][part]) << part;
  EXPECT_NE(state[0][0][0], 0.5f);
  EXPECT_EQ(std::memcmp(weight[0].data(), weight[1].data(), n * sizeof(bf16)), 0);
}

}  // namespace
}  // namespace spillway
