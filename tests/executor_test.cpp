// The executor plays a plan as if task after task: whatever the delays, every task sees the bytes it would
// have seen, and a failure of any lane reaches the caller.
#include "runtime/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <optional>

#include "support/data_flow.h"
#include "support/error_of.h"
#include "support/plan_requests.h"
#include "support/sanitizers.h"
#include "support/swap_harness.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using namespace spillway::testing;

// A plan by hand: buffers of 64 bytes and tasks over them.
class Sketch {
 public:
  int buffer(Tier tier) {
    TierUse& use = plan_.tiers[static_cast<std::size_t>(tier)];
    plan_.buffers.push_back({"b", tier, Owner::workspace, true, 64, use.peak});
    use.peak += 64;
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  int task(Lane lane, std::vector<int> reads, std::vector<int> writes, std::vector<Dependency> dependencies) {
    Task task{};
    task.kind = lane == Lane::cpu ? TaskKind::gate : TaskKind::forward;
    task.lane = lane;
    for (const int b : reads) task.accesses.push_back({b, Role::source, true, false, 0, 64});
    for (const int b : writes) task.accesses.push_back({b, Role::destination, false, true, 0, 64});
    task.dependencies = std::move(dependencies);
    plan_.step.tasks.push_back(std::move(task));
    return static_cast<int>(plan_.step.tasks.size()) - 1;
  }

  Plan& plan() { return plan_; }

 private:
  Plan plan_;
};

// One source, two copies on other streams, the cpu joins them; the source's next run waits for the cpu.
Plan diamond() {
  Sketch sketch;
  const int a = sketch.buffer(Tier::device), b = sketch.buffer(Tier::host), c = sketch.buffer(Tier::host), sum = sketch.buffer(Tier::host);
  const int source = sketch.task(Lane::compute, {sum}, {a}, {});
  const int left = sketch.task(Lane::d2h, {a}, {b}, {{source, false}});
  const int right = sketch.task(Lane::h2d, {a}, {c}, {{source, false}});
  const int join = sketch.task(Lane::cpu, {b, c}, {sum}, {{left, false}, {right, false}});
  std::vector<Task>& tasks = sketch.plan().step.tasks;
  tasks[static_cast<std::size_t>(source)].dependencies = {{join, true}};
  return sketch.plan();
}

// Streams only: nothing makes a host thread wait for the work itself.
Plan streams_only() {
  Sketch sketch;
  const int a = sketch.buffer(Tier::device), b = sketch.buffer(Tier::device);
  const int first = sketch.task(Lane::compute, {a}, {b}, {});
  const int second = sketch.task(Lane::h2d, {b}, {a}, {{first, false}});
  sketch.plan().step.tasks[static_cast<std::size_t>(first)].dependencies = {{second, true}};
  return sketch.plan();
}

// Each stream writes what each of the others reads: a lane has to wait for every other.
Plan every_pair_of_streams() {
  Sketch sketch;
  constexpr Lane kStreams[] = {Lane::compute, Lane::h2d, Lane::d2h, Lane::comm};
  for (const Lane from : kStreams) {
    for (const Lane to : kStreams) {
      if (from == to) continue;
      const int a = sketch.buffer(Tier::device), b = sketch.buffer(Tier::device);
      const int writer = sketch.task(from, {b}, {a}, {});
      const int reader = sketch.task(to, {a}, {b}, {{writer, false}});
      sketch.plan().step.tasks[static_cast<std::size_t>(writer)].dependencies = {{reader, true}};
    }
  }
  return sketch.plan();
}

// Two streams that have nothing to do with each other, one with much more to do.
Plan unequal_streams() {
  Sketch sketch;
  const int a = sketch.buffer(Tier::device), b = sketch.buffer(Tier::device);
  for (int i = 0; i < 8; ++i) sketch.task(Lane::compute, {a}, {a}, {});
  sketch.task(Lane::h2d, {b}, {b}, {});
  return sketch.plan();
}

Plan everything_on_nvme() {
  PlanRequest request = small_request();
  request.offload_optimizer = request.offload_param = request.offload_gradients = request.offload_activations = OffloadDevice::nvme;
  request.accumulation_steps = 2;
  return build_plan(request);
}

constexpr std::uint32_t kRuns = 5;

// An executor over fake actions, and what they should have done.
struct Play {
  Play(const Plan& plan, int chaos_us, std::uint64_t seed, SwapStoreOptions store_options = {}) : plan(plan), flow(plan, kRuns), chaos_us(chaos_us), seed(seed) {
    if (store_options.paths.empty()) store_options.paths = {{folder.path()}};
    store = zeroed_store(plan, std::move(store_options));
    HostDeviceOptions options;
    options.chaos_max_delay_us = chaos_us;
    options.chaos_seed = seed;
    device = make_host_device(options);
  }

  Executor& start() {
    flow.use_store(store.get());
    return executor.emplace(plan, *device, store.get(), flow, ExecutorOptions{chaos_us, seed});
  }

  const Plan& plan;
  TestFolder folder;
  std::unique_ptr<SwapStore> store;
  DataFlow flow;
  int chaos_us;
  std::uint64_t seed;
  std::unique_ptr<Device> device;
  std::optional<Executor> executor;  // last: the first to go
};

void expect_same_extents(const Plan& plan, SwapStore& store, TierMemory& expected, const std::string& what) {
  const std::unique_ptr<SwapChannel> channel = store.open_channel(IoPriority::streaming);
  for (std::size_t i = 0; i < plan.extents.size(); ++i) {
    const ExtentPlan& extent = plan.extents[i];
    AlignedBuffer data(extent.bytes);
    read_now(*channel, static_cast<int>(i), data);
    const Access all{extent.buffer, Role::source, true, false, extent.begin, extent.begin + extent.bytes};
    EXPECT_TRUE(std::ranges::equal(data.span(), expected.bytes(plan, all))) << extent.name << ", " << what;
  }
}

// Every task saw the inputs it had to see, after the tasks it depends on; lanes kept their order.
void expect_as_in_order(Play& play, DataFlow& expected, ProgramId id, std::uint32_t runs, const std::string& what) {
  const Program& program = id == ProgramId::step ? play.plan.step : play.plan.evaluation;
  std::array<std::vector<int>, kLanes> order;
  for (std::uint32_t run = 1; run <= runs; ++run) {
    for (std::size_t i = 0; i < program.tasks.size(); ++i) {
      const Task& task = program.tasks[i];
      const TaskTrace& trace = play.flow.trace(id, run, static_cast<int>(i));
      order[static_cast<std::size_t>(task.lane)].push_back(static_cast<int>(i));
      ASSERT_GT(trace.start, 0) << name_of(task.kind) << " never ran, " << what;
      if (!is_nvme(task.lane)) {
        EXPECT_EQ(trace.inputs, expected.trace(id, run, static_cast<int>(i)).inputs) << name_of(task.kind) << ", run " << run << ", " << what;
      }
      for (const Dependency& d : task.dependencies) {
        if (run == 1 && d.previous_run) continue;
        EXPECT_LT(play.flow.trace(id, run - (d.previous_run ? 1 : 0), d.task).end, trace.start) << what;
      }
    }
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) EXPECT_EQ(play.flow.order(id, static_cast<Lane>(lane)), order[lane]) << what;
}

void expect_sane_times(Executor& executor, const Plan& plan, std::uint32_t last_run, const std::string& what) {
  const std::span<const TaskTime> before_view = executor.times(ProgramId::step, last_run - 1);
  const std::vector<TaskTime> before(before_view.begin(), before_view.end());
  const std::span<const TaskTime> times = executor.times(ProgramId::step, last_run);
  for (std::size_t i = 0; i < times.size(); ++i) {
    EXPECT_LE(times[i].start_ns, times[i].end_ns) << what;
    EXPECT_GT(times[i].start_ns, 0) << what;
    for (const Dependency& d : plan.step.tasks[i].dependencies) {
      const TaskTime source = d.previous_run ? before[static_cast<std::size_t>(d.task)] : times[static_cast<std::size_t>(d.task)];
      EXPECT_LE(source.end_ns, times[i].start_ns) << name_of(plan.step.tasks[i].kind) << ", " << what;
    }
  }
}

void expect_plays_in_order(const Plan& plan, int chaos_us, std::uint64_t seed, const std::string& what) {
  Play play(plan, chaos_us, seed);
  DataFlow expected(plan, kRuns);
  Executor& executor = play.start();
  for (std::uint32_t run = 1; run <= kRuns; ++run) {
    EXPECT_EQ(executor.submit(ProgramId::step), run);
    expected.play_in_order(ProgramId::step);
    if (run != 3 || plan.evaluation.tasks.empty()) continue;
    executor.drain();
    EXPECT_EQ(executor.submit(ProgramId::evaluation), 1u);
    expected.play_in_order(ProgramId::evaluation);
    executor.drain();
  }
  executor.drain();
  expect_as_in_order(play, expected, ProgramId::step, kRuns, what);
  if (!plan.evaluation.tasks.empty()) expect_as_in_order(play, expected, ProgramId::evaluation, 1, what);
  for (const Tier tier : {Tier::device, Tier::host}) {
    const auto t = static_cast<std::size_t>(tier);
    EXPECT_EQ(play.flow.memory.arenas[t], expected.memory.arenas[t]) << name_of(tier) << ", " << what;
  }
  if (play.store) expect_same_extents(plan, *play.store, expected.memory, what);
  EXPECT_EQ(play.flow.crowded_starts(), 0) << "three runs were in progress, " << what;
  expect_sane_times(executor, plan, kRuns, what);
}

TEST(Executor, PlaysPlansByHandInOrder) {
  for (const int chaos_us : {0, 500}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const std::string what = "delays of " + std::to_string(chaos_us) + " us, seed " + std::to_string(seed);
      expect_plays_in_order(diamond(), chaos_us, seed, "diamond, " + what);
      expect_plays_in_order(streams_only(), chaos_us, seed, "streams only, " + what);
      expect_plays_in_order(every_pair_of_streams(), chaos_us, seed, "every pair of streams, " + what);
      expect_plays_in_order(unequal_streams(), chaos_us, seed, "unequal streams, " + what);
    }
  }
}

TEST(Executor, PlaysEverythingOnNvmeInOrder) {
  const Plan plan = everything_on_nvme();
  expect_plays_in_order(plan, 0, 1, "no delays");
  for (std::uint64_t seed = 1; seed <= fewer_if_sanitized(3, 1); ++seed) expect_plays_in_order(plan, 100, seed, "seed " + std::to_string(seed));
}

TEST(Executor, PlaysRandomPlansInOrder) {
  std::mt19937_64 random(20261201);
  for (std::uint64_t i = 0; i < fewer_if_sanitized(60, 15); ++i) {
    const Plan plan = build_plan(random_request(random));
    expect_plays_in_order(plan, i % 5 == 0 ? 50 : 0, i, "plan " + std::to_string(i));
  }
}

TEST(Executor, WaitReturnsWhenTheTaskHasFinished) {
  const Plan plan = everything_on_nvme();
  Play play(plan, 100, 5);
  Executor& executor = play.start();
  for (std::uint32_t run = 1; run <= 2; ++run) {
    executor.submit(ProgramId::step);
    for (std::size_t i = 0; i < plan.step.tasks.size(); i += 7) {
      executor.wait(ProgramId::step, run, static_cast<int>(i));
      const TaskTrace& trace = play.flow.trace(ProgramId::step, run, static_cast<int>(i));
      EXPECT_GT(is_nvme(plan.step.tasks[i].lane) ? trace.start : trace.end, 0);
    }
  }
}

TEST(Executor, DestructionFinishesWhatWasSubmitted) {
  const Plan plan = everything_on_nvme();
  Play play(plan, 100, 3);
  DataFlow expected(plan, kRuns);
  for (int run = 1; run <= 2; ++run) expected.play_in_order(ProgramId::step);
  Executor& executor = play.start();
  executor.submit(ProgramId::step);
  executor.submit(ProgramId::step);
  play.executor.reset();
  expect_as_in_order(play, expected, ProgramId::step, 2, "after destruction");
  expect_same_extents(plan, *play.store, expected.memory, "after destruction");
}

// Runs until something fails, checks that the failure is the expected one and stays, and that the executor
// can be destroyed. A hang is the test's timeout.
void expect_failure(Play& play, const std::string& expected, const std::string& what) {
  Executor& executor = play.start();
  const std::string first = error_of<std::exception>([&] {
    for (std::uint32_t run = 1; run <= kRuns; ++run) executor.submit(ProgramId::step);
    executor.drain();
  });
  EXPECT_NE(first.find(expected), std::string::npos) << first << ", " << what;
  EXPECT_EQ(error_of<std::exception>([&] { executor.drain(); }), first) << what;
  EXPECT_EQ(error_of<std::exception>([&] { executor.submit(ProgramId::step); }), first) << what;
  EXPECT_EQ(error_of<std::exception>([&] { executor.submit(ProgramId::evaluation); }), first) << what;
  EXPECT_EQ(error_of<std::exception>([&] { executor.wait(ProgramId::step, 1, 0); }), first) << what;
  EXPECT_EQ(error_of<std::exception>([&] { executor.times(ProgramId::step, 1); }), first) << what;
  play.executor.reset();
}

std::vector<int> first_and_last_task(const Plan& plan, Lane lane) {
  std::vector<int> tasks;
  for (std::size_t i = 0; i < plan.step.tasks.size(); ++i) {
    if (plan.step.tasks[i].lane == lane) tasks.push_back(static_cast<int>(i));
  }
  return tasks.empty() ? tasks : std::vector<int>{tasks.front(), tasks.back()};
}

TEST(ExecutorFailure, OfATaskOnAnyLaneReachesTheCallerAndStays) {
  const Plan plan = everything_on_nvme();
  std::uint64_t seed = 0;
  for (std::size_t l = 0; l < kLanes; ++l) {
    const auto lane = static_cast<Lane>(l);
    for (const int task : first_and_last_task(plan, lane)) {
      for (const std::uint32_t run : {1u, 3u}) {
        for (const bool early : {false, true}) {
          if (early && !is_stream(lane)) continue;
          Play play(plan, run == 1 ? 50 : 0, ++seed);
          const std::string text = std::string(name_of(lane)) + " broke";
          play.flow.faults = {{ProgramId::step, run, task, early, text}};
          expect_failure(play, text, "task " + std::to_string(task) + ", run " + std::to_string(run) + (early ? ", enqueuing" : ""));
        }
      }
    }
  }
  EXPECT_GE(seed, 6u * 4u);
}

// No host thread ever looks at these streams but the caller.
TEST(ExecutorFailure, OfAStreamThatNobodyWaitsForReachesTheCaller) {
  const Plan plan = streams_only();
  for (std::uint32_t run = 1; run <= kRuns; ++run) {
    Play play(plan, 100, run);
    play.flow.faults = {{ProgramId::step, run, 1, false, "h2d broke"}};
    expect_failure(play, "h2d broke", "run " + std::to_string(run));
  }
}

TEST(ExecutorFailure, OnlyTheFirstOfSeveralIsEverSeen) {
  const Plan plan = everything_on_nvme();
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Play play(plan, 200, seed);
    for (std::size_t l = 0; l < kLanes; ++l) {
      for (const int task : first_and_last_task(plan, static_cast<Lane>(l))) {
        play.flow.faults.push_back({ProgramId::step, 1, task, false, "broke: " + std::to_string(task)});
      }
    }
    expect_failure(play, "broke: ", "seed " + std::to_string(seed));
  }
}

TEST(ExecutorFailure, OfATransferReachesTheCaller) {
  const Plan plan = everything_on_nvme();
  const TestFolder folder;
  // Each extent has been written once before requests count.
  for (const int fail_at : {0, 3, 40}) {
    Play play(plan, 50, 1);
    SwapStoreOptions options;
    options.paths = {{folder.path()}};
    std::atomic<bool> armed{false};
    play.store = zeroed_store(plan, with_faults(options, {.fail_at = fail_at, .fail_error = EIO, .armed = &armed}));
    armed = true;
    expect_failure(play, "Input/output error", "request " + std::to_string(fail_at));
  }
}

// A store that remembers who asked for what.
class WatchedStore final : public SwapStore {
 public:
  explicit WatchedStore(std::unique_ptr<SwapStore> store) : store_(std::move(store)) {}

  std::unique_ptr<SwapChannel> open_channel(IoPriority priority) override {
    const std::lock_guard lock(mutex_);
    priorities.push_back(priority);
    return store_->open_channel(priority);
  }
  SwapCounters counters() const override { return store_->counters(); }
  std::vector<SwapPathHealth> health() const override { return store_->health(); }
  std::string_view engine_name() const override { return store_->engine_name(); }
  bool buffered() const override { return store_->buffered(); }
  int path_of(int extent) const override { return store_->path_of(extent); }
  void corrupt_for_test(int extent, std::int64_t byte, int bit) override { store_->corrupt_for_test(extent, byte, bit); }

  std::vector<IoPriority> priorities;

 private:
  std::unique_ptr<SwapStore> store_;
  std::mutex mutex_;  // lanes open their channels on their own threads
};

TEST(Executor, OnlyTheReadsAForwardWaitsForAreUrgent) {
  const Plan plan = everything_on_nvme();
  Play play(plan, 0, 1);
  auto watched = std::make_unique<WatchedStore>(std::move(play.store));
  WatchedStore& store = *watched;
  play.store = std::move(watched);
  Executor& executor = play.start();
  executor.submit(ProgramId::step);
  executor.drain();
  std::erase(store.priorities, IoPriority::background);  // the fake actions' own
  std::ranges::sort(store.priorities);
  EXPECT_EQ(store.priorities, (std::vector{IoPriority::urgent, IoPriority::streaming, IoPriority::streaming}));
}

TEST(ExecutorFailure, OfAChecksumNamesTheExtent) {
  const Plan plan = everything_on_nvme();
  // Of those that outlive a step: a gradient would be written anew.
  for (const int extent : {plan.tiles.front().state_extent, plan.tiles.back().state_extent, plan.tiles.front().weights_extent}) {
    Play play(plan, 0, 1);
    play.store->corrupt_for_test(extent, 17, 3);
    expect_failure(play, plan.extents[static_cast<std::size_t>(extent)].name, "extent " + std::to_string(extent));
  }
}

}  // namespace
}  // namespace spillway
