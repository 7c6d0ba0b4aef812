// The cases of every communicator over threads of one process, and how failures spread there.
#include "support/thread_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "spillway/device.h"
#include "spillway/error.h"
#include "support/communicator_cases.h"
#include "support/error_of.h"
#include "support/sanitizers.h"

namespace spillway::testing {
namespace {

// Runs body(rank) on a thread for each rank.
template <class Body>
void on_each(int n, Body&& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) threads.emplace_back([&body, r] { body(r); });
  for (std::thread& thread : threads) thread.join();
}

class ThreadWorlds : public ::testing::TestWithParam<std::tuple<CommunicatorCase, int>> {};

TEST_P(ThreadWorlds, DoAsTheReference) {
  const auto& [one_case, n] = GetParam();
  const auto worlds = make_thread_worlds(n);
  static const auto device = make_host_device({.threads = 1, .chaos_max_delay_us = 100, .chaos_seed = 1});
  static std::deque<RankMemory> memories;
  while (static_cast<int>(memories.size()) < n) memories.emplace_back(*device);
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 2 * n; ++i) streams.push_back(device->make_stream("rank"));
  on_each(n, [&, run = one_case.run](int r) {
    const std::size_t i = static_cast<std::size_t>(r);
    memories[i].reset();
    EXPECT_NO_THROW(run({*worlds[i], memories[i], *streams[2 * i], *streams[2 * i + 1]})) << "rank " << r;
  });
}

std::vector<int> worlds() { return kSanitized ? std::vector<int>{1, 2, 3, 8} : std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8}; }

INSTANTIATE_TEST_SUITE_P(All, ThreadWorlds,
                         ::testing::Combine(::testing::ValuesIn(communicator_cases().begin(), communicator_cases().end()),
                                            ::testing::ValuesIn(worlds())),
                         [](const auto& info) { return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param)); });

TEST(ThreadWorld, AFailureEndsTheWaitsOfAllAndNamesItsRank) {
  const auto worlds = make_thread_worlds(4);
  const auto device = make_host_device({.threads = 1});
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(device->make_stream("rank"));
  std::vector<std::string> errors(4);
  on_each(4, [&](int r) {
    World& world = *worlds[static_cast<std::size_t>(r)];
    Stream& stream = *streams[static_cast<std::size_t>(r)];
    const auto comm = world.communicator();
    if (r == 2) {
      world.note_step(17);
      world.note_operation("backward", "block 3");
      world.fail("out of paper");
    }
    std::vector<std::byte> buffer(40);
    const std::vector<Part> parts = {{0, 10}, {10, 10}, {20, 10}, {30, 10}};
    comm->all_gather(stream, buffer.data(), parts);
    errors[static_cast<std::size_t>(r)] = error_of([&] { stream.synchronize(); });
    // And stays.
    EXPECT_EQ(error_of([&] { world.check(); }), errors[static_cast<std::size_t>(r)]);
    EXPECT_EQ(error_of([&] { comm->barrier(); }), errors[static_cast<std::size_t>(r)]);
  });
  EXPECT_EQ(errors, std::vector<std::string>(4, "[comm] rank 2 failed at step 17 in backward of block 3: out of paper"));
}

TEST(ThreadWorld, ARankThatDoesNotComeIsNamedAfterTheTimeout) {
  const auto worlds = make_thread_worlds(3, {.timeout_s = 0.2});
  std::vector<std::string> errors(3);
  on_each(3, [&](int r) {
    const auto comm = worlds[static_cast<std::size_t>(r)]->communicator();
    worlds[static_cast<std::size_t>(r)]->note_step(5);
    comm->barrier();
    if (r != 1) errors[static_cast<std::size_t>(r)] = error_of([&] { comm->barrier(); });
  });
  for (const int r : {0, 2})
    EXPECT_EQ(errors[static_cast<std::size_t>(r)], "[comm] rank 1 has not answered for 0.2 s; last heard at step 5");
}

TEST(ThreadWorld, PartsThatDoNotAgreeAreAnError) {
  const auto worlds = make_thread_worlds(2);
  const auto device = make_host_device({.threads = 1});
  const std::vector<std::unique_ptr<Stream>> streams = [&] {
    std::vector<std::unique_ptr<Stream>> made;
    for (int i = 0; i < 2; ++i) made.push_back(device->make_stream("rank"));
    return made;
  }();
  std::vector<std::string> errors(2);
  on_each(2, [&](int r) {
    const std::size_t i = static_cast<std::size_t>(r);
    const auto comm = worlds[i]->communicator();
    std::vector<std::byte> buffer(30);
    const std::vector<Part> parts = {{0, 10}, {10, r == 0 ? 10 : 12}};
    comm->all_gather(*streams[i], buffer.data(), parts);
    errors[i] = error_of([&] { streams[i]->synchronize(); });
    if (!errors[i].empty()) worlds[i]->fail(errors[i]);
  });
  EXPECT_EQ(std::count(errors.begin(), errors.end(), "[comm] rank 0 expects 10 bytes of rank 1, which sends 12"), 1);
}

}  // namespace
}  // namespace spillway::testing
