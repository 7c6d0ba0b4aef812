// Ranks whose CUDA devices NCCL connects, as threads of one process: the cases of every communicator, and how a failure of
// one rank ends what the others wait for on their devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "spillway/device.h"
#include "spillway/error.h"
#include "support/communicator_cases.h"
#include "support/error_of.h"
#include "support/thread_world.h"

namespace spillway::testing {
namespace {

constexpr int kMostRanks = 4;

// Each rank's device, for all tests of the process.
struct RankDevice {
  explicit RankDevice(int index) : device(make_cuda_device(index)) {}

  std::unique_ptr<Device> device;
  RankMemory memory{*device};
};

std::deque<RankDevice>& devices() {
  static std::deque<RankDevice> all;
  while (static_cast<int>(all.size()) < kMostRanks) all.emplace_back(static_cast<int>(all.size()));
  return all;
}

template <class Body>
void on_each(int n, Body&& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) threads.emplace_back([&body, r] { body(r); });
  for (std::thread& thread : threads) thread.join();
}

class Nccl : public ::testing::TestWithParam<std::tuple<CommunicatorCase, int>> {};

TEST_P(Nccl, DoesAsTheReference) {
  const auto& [one_case, n] = GetParam();
  const auto worlds = make_thread_worlds(n);
  devices();
  on_each(n, [&, run = one_case.run](int r) {
    World& control = *worlds[static_cast<std::size_t>(r)];
    auto& [device, memory] = devices()[static_cast<std::size_t>(r)];
    memory.reset();
    const auto stream = device->make_stream("one"), other = device->make_stream("two");
    try {
      const std::unique_ptr<World> world = make_device_world(control, *device, {});
      run({world ? *world : control, memory, *stream, *other});
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << r << ": " << error.what();
      control.fail(error.what());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Nccl,
                         ::testing::Combine(::testing::ValuesIn(communicator_cases().begin(), communicator_cases().end()),
                                            ::testing::Range(1, kMostRanks + 1)),
                         [](const auto& info) { return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param)); });

// What waits for ever cannot be told to stop: it is told of, and the process ends.
class Deadline {
 public:
  Deadline() : thread_([this] { run(); }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      met_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  static constexpr std::chrono::seconds kLimit{20};  // of what takes a moment, even under a sanitizer

  void run() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kLimit, [this] { return met_; })) return;
    std::fputs("ranks still wait for one that has failed\n", stderr);
    std::_Exit(1);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool met_ = false;
  std::thread thread_;
};

// Devices of its own: what fails stays failed.
struct Rank {
  Rank(World& control, int index)
      : device(make_cuda_device(index)), memory(*device), world(make_device_world(control, *device, {})), comm(world->communicator()) {}

  // The parts of three ranks.
  void gather(Stream& stream) {
    buffer = memory.upload(stream, std::vector<std::byte>(300));
    comm->all_gather(stream, buffer, parts);
  }

  std::unique_ptr<Device> device;
  RankMemory memory;
  std::unique_ptr<World> world;
  std::unique_ptr<Communicator> comm;
  std::byte* buffer = nullptr;
  const std::vector<Part> parts = {{0, 100}, {100, 100}, {200, 100}};

 private:
  // Nobody is still making its communicator when another goes on to fail.
  const bool all_there_ = (comm->barrier(), true);
};

TEST(NcclFaults, AFailureEndsWhatOthersWaitForOnTheirDevices) {
  const Deadline deadline;
  const auto worlds = make_thread_worlds(3);
  std::vector<std::string> errors(3);
  std::atomic<int> waiting{0};
  on_each(3, [&](int r) {
    World& control = *worlds[static_cast<std::size_t>(r)];
    Rank rank(control, r);
    const auto stream = rank.device->make_stream("comm");
    const auto event = rank.device->make_event();
    if (r == 1) {
      while (waiting < 2) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others are inside the collective
      control.note_step(17);
      control.note_operation("backward", "block 3");
      control.fail("out of paper");
      return;
    }
    ++waiting;
    errors[static_cast<std::size_t>(r)] = error_of([&] {
      rank.gather(*stream);
      stream->record(*event);
      event->synchronize();
    });
    // And stays: on this stream, on others of the device, and for what would be next.
    EXPECT_EQ(error_of([&] { stream->synchronize(); }), errors[static_cast<std::size_t>(r)]);
    EXPECT_EQ(error_of([&] { rank.gather(*stream); }), errors[static_cast<std::size_t>(r)]);
    EXPECT_EQ(error_of([&] { rank.world->check(); }), errors[static_cast<std::size_t>(r)]);
  });
  EXPECT_EQ(errors[0], "[comm] rank 1 failed at step 17 in backward of block 3: out of paper");
  EXPECT_EQ(errors[2], errors[0]);
}

TEST(NcclFaults, AFailureEndsTheMakingOfACommunicator) {
  const auto worlds = make_thread_worlds(3);
  std::vector<std::string> errors(3);
  on_each(3, [&](int r) {
    World& control = *worlds[static_cast<std::size_t>(r)];
    Rank rank(control, r);
    if (r == 2) return control.fail("out of paper");
    errors[static_cast<std::size_t>(r)] = error_of([&] { rank.world->communicator(); });
  });
  for (const int r : {0, 1}) EXPECT_THAT(errors[static_cast<std::size_t>(r)], ::testing::HasSubstr("rank 2 failed at the start: out of paper"));
}

TEST(NcclFaults, TwoRanksOnOneDeviceAreRefused) {
  const auto worlds = make_thread_worlds(3);
  on_each(3, [&](int r) {
    const auto device = make_cuda_device(r == 2 ? 0 : r);
    EXPECT_THAT(error_of([&] { make_device_world(*worlds[static_cast<std::size_t>(r)], *device, {}); }),
                ::testing::HasSubstr("[nccl] join the ranks: ranks 0 and 2 both use the device at "));
  });
}

TEST(NcclFaults, MemoryOfTheHostIsRefused) {
  const auto worlds = make_thread_worlds(2);
  on_each(2, [&](int r) {
    Rank rank(*worlds[static_cast<std::size_t>(r)], r);
    const auto stream = rank.device->make_stream("comm");
    std::byte* const host = rank.device->allocate_pinned(100);
    const std::vector<Part> parts = {{0, 50}, {50, 50}};
    EXPECT_THAT(error_of([&] { rank.comm->all_gather(*stream, host, parts); }),
                ::testing::HasSubstr("[nccl] all_gather of 50 bytes: the buffer is not in an arena of cuda:"));
  });
}

// A world may outlive its device, and is made for one of several Device objects of it.
TEST(NcclWorld, OutlivesItsDeviceAndServesAnotherForTheSame) {
  const auto worlds = make_thread_worlds(2);
  on_each(2, [&](int r) {
    auto first = make_cuda_device(r);
    const std::unique_ptr<World> world = make_device_world(*worlds[static_cast<std::size_t>(r)], *first, {});
    first.reset();
    auto second = make_cuda_device(r);
    RankMemory memory(*second);
    {
      const auto stream = second->make_stream("comm");
      const auto comm = world->communicator();
      const std::vector<Part> parts = {{0, 2}, {2, 1}};
      std::vector<std::byte> mine(3);
      for (std::int64_t i = 0; i < parts[static_cast<std::size_t>(r)].bytes; ++i)
        mine[static_cast<std::size_t>(parts[static_cast<std::size_t>(r)].offset + i)] = static_cast<std::byte>(r + 1);
      std::byte* const buffer = memory.upload(*stream, mine);
      comm->all_gather(*stream, buffer, parts);
      const auto result = memory.download(*stream, buffer, 3);
      stream->synchronize();
      EXPECT_THAT(result, ::testing::ElementsAre(std::byte{1}, std::byte{1}, std::byte{2}));
    }
    second.reset();
  });
}

}  // namespace
}  // namespace spillway::testing
