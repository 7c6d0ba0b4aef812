// Every built-in I/O engine, in every way it can be used, against one suite, on a real file system with O_DIRECT. Faults, wake(), large
// requests and the choice of an engine have suites of their own: io_engine_*_test.cpp.
#include <algorithm>
#include <cerrno>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/aligned_buffer.h"
#include "support/io_harness.h"

namespace spillway {
namespace {

using namespace spillway::testing;

class IoEngineTest : public ::testing::TestWithParam<EngineCase> {
 protected:
  std::unique_ptr<IoEngine> make(int depth) { return GetParam().make(depth); }
};

INSTANTIATE_TEST_SUITE_P(BuiltIn, IoEngineTest, ::testing::ValuesIn(engine_cases()), label_of);

// Some may go from thread to thread.
class SharedIoEngineTest : public IoEngineTest {};

std::vector<EngineCase> shared_cases() {
  std::vector<EngineCase> cases = engine_cases();
  std::erase_if(cases, [](const EngineCase& engine) { return engine.one_thread; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(BuiltIn, SharedIoEngineTest, ::testing::ValuesIn(shared_cases()), label_of);

TEST_P(IoEngineTest, GivesItsNameAndDepth) {
  const auto engine = make(7);
  EXPECT_EQ(engine->name(), GetParam().engine);
  EXPECT_EQ(engine->depth(), 7);
}

TEST_P(IoEngineTest, RoundTripsEverySize) {
  const auto engine = make(4);
  const ScratchFile file;
  for (const std::int64_t bytes : {kPage, 3 * kPage, std::int64_t{1} << 20, (5 << 20) + kPage}) {
    AlignedBuffer written(bytes), back(bytes);
    written.fill(static_cast<std::uint64_t>(bytes));
    const IoResult write = run(*engine, {IoOp::write, file.fd(), 0, written.data(), bytes, 8});
    EXPECT_EQ(write.tag, 8u);
    EXPECT_EQ(write.bytes, bytes);
    EXPECT_EQ(write.error, 0);
    const IoResult read = run(*engine, {IoOp::read, file.fd(), 0, back.data(), bytes, 9});
    EXPECT_EQ(read.tag, 9u);
    EXPECT_EQ(read.bytes, bytes);
    EXPECT_TRUE(written == back);
  }
}

// Without O_DIRECT anything goes, and what libaio moves then it moves at once.
TEST_P(IoEngineTest, RoundTripsOddSizesAtOddOffsetsThroughThePageCache) {
  const auto engine = make(8);
  const ScratchFile file(0);
  std::vector<AlignedBuffer> written;
  std::int64_t offset = 1;
  std::uint64_t tag = 0;
  for (const std::int64_t bytes : {0, 1, 511, 513, 4097, 65537}) {
    written.emplace_back(bytes);
    written.back().fill(++tag);
    ASSERT_TRUE(engine->queue({IoOp::write, file.fd(), offset, written.back().data(), bytes, tag}));
    offset += bytes + 3;
  }
  reap_all(*engine, static_cast<int>(written.size()));
  offset = 1;
  for (const AlignedBuffer& expected : written) {
    AlignedBuffer back(expected.size());
    const IoResult read = run(*engine, {IoOp::read, file.fd(), offset, back.data(), back.size(), 9});
    EXPECT_EQ(read.bytes, back.size());
    EXPECT_TRUE(back == expected) << expected.size();
    offset += back.size() + 3;
  }
}

TEST_P(IoEngineTest, ReachesOffsetsBeyond32Bits) {
  const auto engine = make(8);
  const ScratchFile file;  // sparse
  const std::vector<std::int64_t> offsets = {0, (std::int64_t{1} << 31) - kPage, std::int64_t{1} << 31,
                                             (std::int64_t{1} << 32) - kPage, std::int64_t{1} << 32,
                                             (std::int64_t{1} << 40) + kPage};
  for (const std::int64_t offset : offsets) {
    AlignedBuffer data(kPage);
    data.fill(static_cast<std::uint64_t>(offset));
    ASSERT_EQ(run(*engine, {IoOp::write, file.fd(), offset, data.data(), kPage, 0}).bytes, kPage) << offset;
  }
  for (const std::int64_t offset : offsets) {
    AlignedBuffer expected(kPage), back(kPage);
    expected.fill(static_cast<std::uint64_t>(offset));
    ASSERT_EQ(pread(file.fd(), back.data(), kPage, offset), kPage);
    EXPECT_TRUE(expected == back) << offset;
    ASSERT_EQ(run(*engine, {IoOp::read, file.fd(), offset, back.data(), kPage, 0}).bytes, kPage);
    EXPECT_TRUE(expected == back) << offset;
  }
}

TEST_P(IoEngineTest, ReturnsTagsThatMatchTheirData) {
  constexpr int kDepth = 16;
  constexpr std::int64_t kSlots = 64;
  const auto engine = make(kDepth);
  const ScratchFile file;
  AlignedBuffer image(kSlots * kPage);
  image.fill(5);
  ASSERT_EQ(pwrite(file.fd(), image.data(), static_cast<std::size_t>(image.size()), 0), image.size());
  std::vector<AlignedBuffer> buffers;
  for (int i = 0; i < kDepth; ++i) buffers.emplace_back(4 * kPage);
  struct Expected {
    std::int64_t offset, bytes;
    std::size_t buffer;
  };
  std::map<std::uint64_t, Expected> open;
  std::vector<std::size_t> free;
  for (std::size_t i = 0; i < kDepth; ++i) free.push_back(i);
  std::mt19937 random(11);
  const auto check = [&](const IoResult& result) {
    const Expected expected = open.at(result.tag);
    open.erase(result.tag);
    ASSERT_EQ(result.bytes, expected.bytes);
    EXPECT_TRUE(std::equal(image.data() + expected.offset, image.data() + expected.offset + expected.bytes,
                           buffers[expected.buffer].data()));
    free.push_back(expected.buffer);
  };
  for (std::uint64_t tag = 1; tag <= 500; ++tag) {
    const std::int64_t pages = std::uniform_int_distribution<std::int64_t>(1, 4)(random);
    const std::int64_t first = std::uniform_int_distribution<std::int64_t>(0, kSlots - pages)(random);
    std::vector<IoResult> results(3);
    while (free.empty()) {
      const int count = engine->reap(results, 1);
      ASSERT_GE(count, 1);
      for (int i = 0; i < count; ++i) check(results[static_cast<std::size_t>(i)]);
    }
    const std::size_t buffer = free.back();
    free.pop_back();
    open[tag << 40] = {first * kPage, pages * kPage, buffer};
    const auto offset = first * kPage, bytes = pages * kPage;
    ASSERT_TRUE(engine->queue({IoOp::read, file.fd(), offset, buffers[buffer].data(), bytes, tag << 40}));
    if (tag % 3 == 0) engine->submit();
  }
  for (const IoResult& result : reap_all(*engine, static_cast<int>(open.size()))) check(result);
  EXPECT_TRUE(open.empty());
}

TEST_P(IoEngineTest, ReportsAShortReadAtTheEndOfTheFileAndNothingPastIt) {
  const auto engine = make(2);
  const ScratchFile file;
  ASSERT_EQ(ftruncate(file.fd(), 3 * kPage + 100), 0);
  AlignedBuffer data(4 * kPage);
  const IoResult across = run(*engine, {IoOp::read, file.fd(), 2 * kPage, data.data(), 4 * kPage, 1});
  EXPECT_EQ(across.bytes, kPage + 100);
  EXPECT_EQ(across.error, 0);
  const IoResult past = run(*engine, {IoOp::read, file.fd(), 8 * kPage, data.data(), kPage, 2});
  EXPECT_EQ(past.bytes, 0);
  EXPECT_EQ(past.error, 0);
}

TEST_P(IoEngineTest, ReportsEachRequestsOwnErrnoAndGoesOn) {
  const auto engine = make(4);
  const ScratchFile file;
  AlignedBuffer data(2 * kPage);
  data.fill(1);
  ASSERT_TRUE(engine->queue({IoOp::write, file.fd(), 0, data.data(), kPage, 1}));
  ASSERT_TRUE(engine->queue({IoOp::write, -1, 0, data.data(), kPage, 2}));
  ASSERT_TRUE(engine->queue({IoOp::write, file.fd(), 100, data.data(), kPage, 3}));
  ASSERT_TRUE(engine->queue({IoOp::write, file.fd(), kPage, data.data(), kPage, 4}));
  engine->submit();
  const auto results = reap_all(*engine, 4);
  EXPECT_EQ(results[0].bytes, kPage);
  EXPECT_EQ(results[1].error, EBADF);
  EXPECT_EQ(results[1].bytes, 0);
  EXPECT_EQ(results[2].error, EINVAL) << "O_DIRECT should refuse offset 100";
  EXPECT_EQ(results[3].bytes, kPage);
  EXPECT_EQ(run(*engine, {IoOp::read, file.fd(), 0, data.data(), kPage, 5}).bytes, kPage);
}

TEST_P(IoEngineTest, TakesNoMoreThanItsDepth) {
  const auto engine = make(3);
  const ScratchFile file;
  AlignedBuffer data(4 * kPage);
  ASSERT_EQ(ftruncate(file.fd(), 4 * kPage), 0);
  const auto request = [&](std::int64_t i) {
    return IoRequest{IoOp::read, file.fd(), i * kPage, data.data() + i * kPage, kPage, static_cast<std::uint64_t>(i)};
  };
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_TRUE(engine->queue(request(i)));
  EXPECT_FALSE(engine->queue(request(3)));
  reap_all(*engine, 1);
  EXPECT_TRUE(engine->queue(request(3)));
  EXPECT_FALSE(engine->queue(request(3)));
  reap_all(*engine, 3);
}

TEST_P(IoEngineTest, NeverWaitsForMoreThanIsInFlightOrFits) {
  const auto engine = make(4);
  const ScratchFile file;
  std::vector<IoResult> results(4);
  EXPECT_EQ(engine->reap(results, 0), 0);
  EXPECT_EQ(engine->reap(results, 4), 0);
  AlignedBuffer data(3 * kPage);
  ASSERT_EQ(ftruncate(file.fd(), kPage), 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine->queue({IoOp::read, file.fd(), 0, data.data() + i * kPage, kPage, 0}));
  }
  EXPECT_EQ(engine->reap(std::span(results).first(2), 3), 2);
  EXPECT_EQ(engine->reap(results, 4), 1);
}

TEST_P(SharedIoEngineTest, MayBeMadeUsedAndDestroyedOnDifferentThreads) {
  const ScratchFile file;
  constexpr std::int64_t kPart = 1 << 20;  // long enough to be under way at the end
  AlignedBuffer written(8 * kPart), back(8 * kPart);
  written.fill(3);
  auto engine = make(8);
  std::thread([&] {
    EXPECT_EQ(run(*engine, {IoOp::write, file.fd(), 0, written.data(), written.size(), 1}).bytes, written.size());
  }).join();
  std::thread([&] {
    for (std::int64_t i = 0; i < 8; ++i) {
      EXPECT_TRUE(engine->queue({IoOp::read, file.fd(), i * kPart, back.data() + i * kPart, kPart, 0}));
    }
    engine->submit();
  }).join();
  engine.reset();  // with requests in flight, which a lane's failure leaves
  std::ranges::fill(back.span(), std::byte{7});
  EXPECT_TRUE(std::ranges::all_of(back.span(), [](std::byte b) { return b == std::byte{7}; }));
}

// The kernel gives an engine the addresses that another thread's engine had a moment ago. In a build with ThreadSanitizer,
// whoever reuses them has to be seen to come after whoever closed what was there.
TEST_P(IoEngineTest, MayTakeThePlaceOfAnotherThreadsEngine) {
  constexpr int kThreads = 4, kEnginesPerThread = 20;
  const ScratchFile file;
  std::vector<AlignedBuffer> pages;
  for (int i = 0; i < kThreads; ++i) {
    pages.emplace_back(kPage);
    pages.back().fill(static_cast<std::uint64_t>(i));
    ASSERT_EQ(pwrite(file.fd(), pages.back().data(), kPage, i * kPage), kPage);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      AlignedBuffer back(kPage);
      for (int engine = 0; engine < kEnginesPerThread; ++engine) {
        std::ranges::fill(back.span(), std::byte{0});
        EXPECT_EQ(run(*make(2), {IoOp::read, file.fd(), i * kPage, back.data(), kPage, 1}).bytes, kPage);
        EXPECT_TRUE(back == pages[static_cast<std::size_t>(i)]) << "thread " << i << ", engine " << engine;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace spillway
