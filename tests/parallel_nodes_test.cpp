// parallel_for on two NUMA nodes of one core each, as HWLOC_SYNTHETIC describes the machine to this program. Binding
// threads is real: the cores are this machine's.
#include "base/parallel.h"

#include <array>
#include <atomic>
#include <barrier>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/affinity.h"

namespace spillway {
namespace {

TEST(ParallelNodes, ThreadsOfANodeBeginWithItsStretchOfThePieces) {
  ASSERT_EQ(parallel_nodes(), 2) << "HWLOC_SYNTHETIC is to describe two nodes, and libtbbbind to be there";
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::array<std::vector<int>, 2> cores;
    std::barrier both(2);  // neither piece ends before the other has begun: two threads take them
    parallel_for(2, [&](std::int64_t piece) {
      cores[static_cast<std::size_t>(piece)] = allowed_cores();
      both.arrive_and_wait();
    });
    EXPECT_EQ(cores[0], std::vector<int>{0});
    EXPECT_EQ(cores[1], std::vector<int>{1});
  }
}

TEST(ParallelNodes, TheCallersThreadIsAsFreeAsBefore) {
  const std::vector<int> before = allowed_cores();
  parallel_for(64, [](std::int64_t) {});
  EXPECT_EQ(allowed_cores(), before);
}

TEST(ParallelNodes, EveryPieceIsDoneOnceWhoeverHelps) {
  for (const std::int64_t pieces : {0, 1, 2, 3, 7, 1000}) {
    std::vector<std::atomic<int>> done(static_cast<std::size_t>(pieces));
    parallel_for(pieces, [&](std::int64_t piece) { ++done[static_cast<std::size_t>(piece)]; });
    for (const auto& count : done) ASSERT_EQ(count, 1);
  }
}

TEST(ParallelNodes, CallsMayOverlap) {
  std::atomic<int> done{0};
  {
    std::vector<std::jthread> callers;
    for (int c = 0; c < 4; ++c) callers.emplace_back([&] {
      for (int repeat = 0; repeat < 50; ++repeat) parallel_for(8, [&](std::int64_t) { ++done; });
    });
  }
  EXPECT_EQ(done, 4 * 50 * 8);
}

TEST(ParallelNodes, AnExceptionOfEitherNodeComesBack) {
  for (const std::int64_t bad : {0, 9}) {
    EXPECT_THROW(parallel_for(10, [&](std::int64_t piece) { if (piece == bad) throw std::runtime_error("piece"); }), std::runtime_error);
  }
  parallel_for(10, [](std::int64_t) {});  // and the pool is whole
}

TEST(ParallelNodes, TooFewThreadsForTheNodesAreNotBound) {
  set_parallel_threads(1);
  EXPECT_EQ(parallel_nodes(), 1);
  set_parallel_threads(0);
  EXPECT_EQ(parallel_nodes(), 2);
}

}  // namespace
}  // namespace spillway
