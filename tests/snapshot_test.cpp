// The state of a step, handed out while that step and the next ones run.
#include <chrono>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "support/training.h"

namespace spillway::testing {
namespace {

// Keeps a hash of every item, which come one after the other. A slow one takes its time for each, as a disk does.
class HashingSink : public SnapshotSink {
 public:
  HashingSink(Engine& engine, bool slow) : engine_(engine), slow_(slow) {}

  std::span<std::byte> acquire(std::size_t item) override {
    if (slow_) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(item, hashes_.size());
    bytes_ = engine_.snapshot_memory().first(static_cast<std::size_t>(engine_.snapshot_items()[item].bytes()));
    return bytes_;
  }
  void submit(std::size_t) override { hashes_.push_back(hash_bytes(bytes_)); }

  const std::vector<std::uint64_t>& hashes() const { return hashes_; }

 private:
  Engine& engine_;
  bool slow_;
  std::span<std::byte> bytes_;
  std::vector<std::uint64_t> hashes_;
};

constexpr int kSteps = 7;

RunSetup small_run() {
  RunSetup setup = tiny_run();
  setup.edit_request = [](PlanRequest& request) { request.snapshot_bytes = 1; };
  return setup;
}

// Of the states before the steps.
std::vector<std::vector<std::uint64_t>> states_between_steps() {
  const RunSetup setup = small_run();
  const std::unique_ptr<Engine> engine = make_engine(setup);
  std::vector<std::vector<std::uint64_t>> states;
  for (int step = 0; step < kSteps; ++step) {
    HashingSink sink(*engine, false);
    engine->snapshot(sink);
    states.push_back(sink.hashes());
    fill_batch(*engine, setup, step);
    engine->step();
  }
  return states;
}

TEST(Snapshot, OfAStepIsItsStateHoweverLongItTakes) {
  const std::vector<std::vector<std::uint64_t>> expected = states_between_steps();
  ASSERT_GT(expected[0].size(), 1u);
  ASSERT_NE(expected[0], expected[1]);
  // Of one step, of steps one after the other, and of steps with one between.
  for (const std::vector<int>& saved : {std::vector{2}, {1, 2, 3}, {0, 2, 4}}) {
    const RunSetup setup = small_run();
    const std::unique_ptr<Engine> engine = make_engine(setup);
    std::vector<HashingSink> sinks(saved.size(), HashingSink(*engine, true));
    std::size_t next = 0;
    for (int step = 0; step < kSteps; ++step) {
      if (next < saved.size() && saved[next] == step) engine->snapshot_in_next_step(sinks[next++]);
      fill_batch(*engine, setup, step);
      engine->step();
    }
    engine->drain();
    for (std::size_t i = 0; i < saved.size(); ++i) {
      EXPECT_EQ(sinks[i].hashes(), expected[static_cast<std::size_t>(saved[i])]) << "step " << saved[i];
    }
  }
}

}  // namespace
}  // namespace spillway::testing
