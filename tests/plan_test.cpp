#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "plan/host_stretches.h"
#include "spillway/error.h"
#include "spillway/plan.h"
#include "support/plan_requests.h"

namespace spillway {
namespace {

using testing::random_request;
using testing::small_request;

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::int64_t moved(const Plan& plan, TaskKind kind) {
  std::int64_t bytes = 0;
  for (const Task& task : plan.step.tasks) bytes += task.kind == kind ? task.bytes : 0;
  return bytes;
}

std::int64_t host_peak(const PlanRequest& request) { return build_plan(request).tiers[static_cast<std::size_t>(Tier::host)].peak; }

TEST(Plan, IsSoundForThousandsOfRandomTriples) {
  std::mt19937_64 random(20261130);
  int fitting = 0;
  for (int i = 0; i < 3000; ++i) {
    const PlanRequest request = random_request(random);
    const Plan plan = build_plan(request);
    const std::vector<std::string> violations = check_plan(plan);
    ASSERT_TRUE(violations.empty()) << "triple " << i << ":\n" << joined(violations);
    fitting += plan.fits();
  }
  EXPECT_GT(fitting, 500);
  EXPECT_LT(fitting, 2900);
}

// Every dependency of a sound plan that is not implied by another one is needed: dropping it must be
// noticed by the check.
TEST(PlanCheck, NoticesEveryDroppedDependency) {
  PlanRequest request = small_request();
  request.offload_optimizer = OffloadDevice::nvme;
  request.offload_param = OffloadDevice::nvme;
  request.offload_gradients = OffloadDevice::nvme;
  request.offload_activations = OffloadDevice::nvme;
  request.accumulation_steps = 2;
  Plan plan = build_plan(request);
  int dropped = 0;
  for (Task& task : plan.step.tasks) {
    const std::vector<Dependency> all = task.dependencies;
    for (std::size_t d = 0; d < all.size(); ++d) {
      task.dependencies = all;
      task.dependencies.erase(task.dependencies.begin() + static_cast<std::ptrdiff_t>(d));
      EXPECT_FALSE(check_plan(plan).empty()) << name_of(task.kind) << " lost its dependency on " << name_of(plan.step.tasks[static_cast<std::size_t>(all[d].task)].kind);
      ++dropped;
    }
    task.dependencies = all;
  }
  EXPECT_GT(dropped, 100);
  EXPECT_TRUE(check_plan(plan).empty());
}

// Extents of gradients and activations keep their bytes: what a run does not write again is of another micro-batch or run.
TEST(PlanCheck, NoticesWhatIsReadButNotWrittenAnew) {
  PlanRequest request = small_request();
  request.offload_optimizer = OffloadDevice::cpu;
  request.offload_gradients = request.offload_activations = OffloadDevice::nvme;
  request.accumulation_steps = 2;
  const Plan sound = build_plan(request);
  ASSERT_TRUE(check_plan(sound).empty());
  for (const TaskKind kind : {TaskKind::write_activation, TaskKind::write_gradient}) {
    Plan plan = sound;
    const auto last = std::find_if(plan.step.tasks.rbegin(), plan.step.tasks.rend(), [&](const Task& task) { return task.kind == kind; });
    ASSERT_NE(last, plan.step.tasks.rend());
    std::erase_if(last->accesses, [](const Access& access) { return access.writes; });
    EXPECT_NE(joined(check_plan(plan)).find("before all of it was written"), std::string::npos) << name_of(kind);
  }
}

TEST(PlanCheck, NoticesOverlapCyclesAndForeignMemory) {
  const Plan sound = build_plan(small_request());
  ASSERT_TRUE(check_plan(sound).empty());

  Plan plan = sound;
  plan.step.tasks[3].dependencies.push_back({5, false});
  EXPECT_NE(joined(check_plan(plan)).find("would never start"), std::string::npos);

  plan = sound;
  plan.buffers[static_cast<std::size_t>(plan.step.tasks.back().accesses[0].buffer)].offset = plan.tiers[0].peak;
  EXPECT_NE(joined(check_plan(plan)).find("outside the"), std::string::npos);

  // Two outputs of neighbouring blocks on the same bytes.
  plan = sound;
  int previous = -1;
  for (const Task& task : plan.step.tasks) {
    for (const Access& access : task.accesses) {
      if (access.role != Role::y) continue;
      if (previous >= 0) plan.buffers[static_cast<std::size_t>(access.buffer)].offset = plan.buffers[static_cast<std::size_t>(previous)].offset;
      previous = access.buffer;
    }
  }
  EXPECT_NE(joined(check_plan(plan)).find("live at the same time"), std::string::npos);

  plan = sound;
  std::erase_if(plan.step.tasks[0].accesses, [](const Access& access) { return access.writes; });
  EXPECT_NE(joined(check_plan(plan)).find("before all of it was written"), std::string::npos);
}

TEST(Plan, FitsItsOwnPeakAndIsRefusedOneByteBelow) {
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    PlanRequest request = small_request();
    request.offload_optimizer = OffloadDevice::nvme;
    const std::int64_t peak = build_plan(request).tiers[static_cast<std::size_t>(tier)].peak;
    ASSERT_GT(peak, 0);
    request.budgets[static_cast<std::size_t>(tier)] = peak;
    EXPECT_NO_THROW(make_plan(request));
    request.budgets[static_cast<std::size_t>(tier)] = peak - 1;
    try {
      make_plan(request);
      FAIL() << "a budget one byte too small was accepted on " << name_of(tier);
    } catch (const MemoryError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("1 B too small"), std::string::npos) << text;
      EXPECT_NE(text.find(std::to_string(peak)), std::string::npos) << text;
    }
  }
}

// What the refusal proposes was planned; applying the last line must be accepted.
TEST(Plan, RefusalProposesChangesThatFit) {
  PlanRequest request = small_request();
  request.budgets[0] = build_plan(request).tiers[0].peak / 2;
  const std::string text = refusal_text(build_plan(request));
  EXPECT_NE(text.find("offload_optimizer.device: \"cpu\""), std::string::npos) << text;
  request.offload_optimizer = OffloadDevice::cpu;
  EXPECT_TRUE(build_plan(request).fits());
}

TEST(Plan, RefusalProposesNvmeForWhatIsOnTheHost) {
  PlanRequest request = small_request();
  request.layers.insert(request.layers.begin() + 1, 20, request.layers[1]);
  request.offload_optimizer = OffloadDevice::nvme;
  PlanRequest with_gradients = request;
  with_gradients.offload_gradients = OffloadDevice::nvme;
  request.budgets[1] = host_peak(with_gradients);
  std::string text = refusal_text(build_plan(request));
  EXPECT_NE(text.find("spillway.offload_gradients: \"nvme\""), std::string::npos) << text;
  request = small_request();
  request.layers.insert(request.layers.begin() + 1, 20, request.layers[1]);
  request.offload_activations = OffloadDevice::nvme;
  request.budgets[1] = host_peak(request);
  request.offload_activations = OffloadDevice::cpu;
  text = refusal_text(build_plan(request));
  EXPECT_NE(text.find("spillway.offload_activations: \"nvme\""), std::string::npos) << text;
}

// Where no single change is enough, several together are proposed, and they fit.
TEST(Plan, RefusalCombinesChangesWhenOneIsNotEnough) {
  PlanRequest request = small_request();
  request.layers_for = [](const BatchShape& shape) {
    std::vector<LayerShape> layers = small_request().layers;
    for (LayerShape& layer : layers) {
      layer.forward_workspace = layer.forward_workspace * shape.batch / 2;
      layer.backward_workspace = layer.backward_workspace * shape.batch / 2;
    }
    return layers;
  };
  PlanRequest small = request;
  small.offload_optimizer = OffloadDevice::cpu;
  small.offload_param = OffloadDevice::cpu;
  small.shape.batch = 1;
  small.accumulation_steps = 2;
  small.layers = small.layers_for(small.shape);
  small.budgets[0] = 1;  // as little as it can
  request.budgets[0] = build_plan(small).tiers[0].peak;
  const std::string text = refusal_text(build_plan(request));
  EXPECT_NE(text.find("offload_optimizer.device: \"cpu\", and "), std::string::npos) << text;
  EXPECT_NE(text.find("train_micro_batch_size_per_gpu: 1 with gradient_accumulation_steps: 2"), std::string::npos) << text;
}

TEST(Plan, FillSinksOnlyAsMuchAsTheBudgetsAsk) {
  PlanRequest request = small_request();
  request.placement = PlacementPolicy::fill;
  request.offload_optimizer = OffloadDevice::nvme;
  request.offload_param = OffloadDevice::nvme;
  const Plan unlimited = build_plan(request);
  for (const TilePlan& tile : unlimited.tiles) EXPECT_EQ(tile.tier, Tier::device);

  request.budgets[0] = unlimited.tiers[0].peak * 6 / 10;
  request.budgets[1] = 1'800'000;
  const Plan mixed = make_plan(request);
  std::array<int, kTiers> tiles{};
  for (const TilePlan& tile : mixed.tiles) ++tiles[static_cast<std::size_t>(tile.tier)];
  EXPECT_GT(tiles[1], 0);
  EXPECT_GT(tiles[2], 0);
}

TEST(Plan, BytesMovedAreThoseOfTheTable) {
  PlanRequest request = small_request();
  request.offload_optimizer = OffloadDevice::nvme;
  request.offload_param = OffloadDevice::cpu;
  const Plan plan = build_plan(request);
  std::int64_t read = 0, written = 0, up = 0, down = 0, stored = 0;
  for (const TilePlan& tile : plan.tiles) stored += tile.state_bytes();
  for (const Task& task : plan.step.tasks) {
    if (task.kind == TaskKind::read_tile) read += task.bytes;
    if (task.lane == Lane::nvme_write) written += task.bytes;
    if (task.kind == TaskKind::drain_gradient) up += task.bytes;
    if (task.kind == TaskKind::gather) down += task.bytes;
  }
  EXPECT_EQ(read, stored);
  EXPECT_EQ(written, stored);
  EXPECT_EQ(up, plan.num_parameters() * 2);
  // Down: every block once forward and once backward, but the last one, which stays for its backward; the
  // embedding for its forward and for the tied head; the head once.
  std::int64_t expected = 0;
  for (std::size_t l = 0; l < plan.layers.size(); ++l) {
    const bool twice = l == 0 || l < plan.layers.size() - 2;
    expected += plan.layers[l].num_elements * 2 * (twice ? 2 : 1);
  }
  EXPECT_EQ(down, expected);
}

// Of which the host holds a few at a time.
TEST(Plan, ActivationsOnNvmeGoAndComeOncePerMicroBatch) {
  PlanRequest request = small_request();
  request.layers.insert(request.layers.begin() + 1, 20, request.layers[1]);
  request.accumulation_steps = 3;
  request.shape = {2, 65};  // not a whole page each
  request.offload_activations = OffloadDevice::nvme;
  const Plan plan = make_plan(request);
  const std::int64_t bytes = 2 * 65 * 64 * 2, padded = (bytes + 4095) / 4096 * 4096;
  const auto saved = static_cast<std::int64_t>(request.layers.size()) - 3;
  EXPECT_EQ(moved(plan, TaskKind::write_activation), 3 * saved * padded);
  EXPECT_EQ(moved(plan, TaskKind::read_activation), 3 * saved * padded);
  EXPECT_EQ(moved(plan, TaskKind::load_activation), 3 * saved * bytes);
  EXPECT_EQ(static_cast<std::int64_t>(plan.extents.size()), saved) << "micro-batches share them";
  PlanRequest on_host = request;
  on_host.offload_activations = OffloadDevice::cpu;
  const std::int64_t depth = request.prefetch_depth;
  EXPECT_LE(host_peak(request), host_peak(on_host) - (saved - 3 * depth) * padded);
}

// Its f32 sums too, where micro-batches are summed up on the host.
TEST(Plan, GradientsOnNvmeAreNotOnTheHost) {
  for (const std::int64_t accumulation : {1, 3}) {
    for (const std::int64_t tile_size : {8192, 6144}) {
      PlanRequest request = small_request();
      request.tile_size = tile_size;
      request.layers.insert(request.layers.begin() + 1, 20, request.layers[1]);
      request.offload_optimizer = OffloadDevice::cpu;
      request.accumulation_steps = accumulation;
      if (accumulation > 1) request.budgets[0] = build_plan(request).tiers[0].peak - 1;  // the sums leave the device
      PlanRequest spilled = request;
      spilled.offload_gradients = OffloadDevice::nvme;
      const Plan plan = make_plan(spilled);
      const std::int64_t width = accumulation > 1 ? 4 : 2;
      EXPECT_EQ(size_of(plan.layers[1].gradient_dtype), width);
      std::int64_t gradients = 0;
      for (const TilePlan& tile : plan.tiles) gradients += padded_bytes(tile, plan.layers[1].gradient_dtype);
      EXPECT_EQ(moved(plan, TaskKind::write_gradient), gradients * accumulation);
      EXPECT_EQ(moved(plan, TaskKind::read_gradient), gradients * accumulation) << "to be added to, and at last by the optimizer";
      EXPECT_EQ(plan.tiers[static_cast<std::size_t>(Tier::nvme)].peak, gradients);
      // Units of one or two tiles: read, on their way from the device, to be written; each twice as deep as is read ahead.
      const std::int64_t unit = 2 * tile_size * width, depth = request.prefetch_depth;
      EXPECT_LT(host_peak(spilled), host_peak(request) - gradients + (3 * depth + 3) * unit) << accumulation << ", " << tile_size;
    }
  }
}

TEST(Plan, FillSendsGradientsToNvmeOnlyIfNothingElseHelps) {
  PlanRequest request = small_request();
  request.placement = PlacementPolicy::fill;
  request.offload_optimizer = request.offload_param = request.offload_gradients = OffloadDevice::nvme;
  request.budgets[0] = build_plan(request).tiers[0].peak * 6 / 10;
  const auto on_nvme = [](const Plan& plan) {
    return std::ranges::count_if(plan.layers, [](const LayerPlan& layer) { return layer.gradient_tier == Tier::nvme; });
  };
  EXPECT_EQ(on_nvme(make_plan(request)), 0);
  PlanRequest without = request;
  without.offload_gradients = OffloadDevice::cpu;
  without.budgets[1] = 1;  // as little as it can without
  request.budgets[1] = host_peak(without);
  EXPECT_EQ(on_nvme(make_plan(request)), 0);
  *request.budgets[1] -= 8192;
  const Plan plan = make_plan(request);
  EXPECT_GT(on_nvme(plan), 0);
  EXPECT_LT(on_nvme(plan), std::ranges::count_if(plan.layers, [](const LayerPlan& layer) { return !layer.update_on_device; }));
  for (const TilePlan& tile : plan.tiles) EXPECT_NE(tile.tier, Tier::host);
}

// Of the table in docs/optimizers.md: what is kept, and what an update reads and writes beside gradient and weight.
TEST(Plan, StateHasTheBytesOfItsOptimizerAndFormat) {
  using enum OptimizerKind;
  using enum MomentFormat;
  const struct {
    StateFormat format;
    double bytes;
  } rows[] = {{{adam, f32}, 12}, {{adam, bf16}, 8}, {{adam, block8}, 6 + 2.0 / 256}, {{lion, f32}, 8}, {{adagrad, bf16}, 6}, {{sgd_momentum, block8}, 5 + 1.0 / 256}, {{sgd, f32}, 4}};
  for (const auto& [format, bytes] : rows) {
    PlanRequest request = small_request();
    request.state = format;
    request.offload_optimizer = OffloadDevice::nvme;
    request.tile_size = 1 << 20;
    const Plan plan = build_plan(request);
    std::int64_t kept = 0, moved = 0;
    for (const TilePlan& tile : plan.tiles) kept += tile.state_bytes();
    for (const Task& task : plan.step.tasks) moved += task.kind == TaskKind::update_tile ? task.bytes : 0;
    const auto n = static_cast<double>(plan.num_parameters());
    EXPECT_NEAR(static_cast<double>(moved) / n, 2 * bytes + 4, 1e-3) << bytes;
    EXPECT_NEAR(static_cast<double>(plan.state_bytes()) / n, 2 + bytes + 2, 1e-3) << bytes;
    EXPECT_GE(static_cast<double>(kept), bytes * n);
    EXPECT_LE(static_cast<double>(kept), bytes * n + static_cast<double>(3 * 4096 * plan.tiles.size())) << "sections are padded to pages";
  }
}

// Of all elements of all layers, no two alike.
TEST(Plan, HostStretchesAreWhatTheHostsUpdatesTouch) {
  for (const MomentFormat moments : {MomentFormat::f32, MomentFormat::bf16, MomentFormat::block8}) {
    PlanRequest request = testing::small_request();
    request.zero_stage = 2;
    request.state.moments = moments;
    request.offload_optimizer = OffloadDevice::cpu;
    const Plan plan = build_plan(request);
    const std::vector<ByteRange> stretches = host_stretches(plan);
    const auto bytes_within = [&](std::int64_t begin, std::int64_t end) {
      std::int64_t bytes = 0;
      for (const ByteRange& stretch : stretches) {
        EXPECT_TRUE(stretch.end <= begin || stretch.begin >= end || (stretch.begin >= begin && stretch.end <= end)) << "across two buffers";
        if (stretch.begin >= begin && stretch.end <= end) bytes += stretch.end - stretch.begin;
      }
      return bytes;
    };
    for (const TilePlan& tile : plan.tiles) {
      const std::int64_t begin = plan.buffers[static_cast<std::size_t>(tile.state_buffer)].offset;
      EXPECT_EQ(bytes_within(begin, begin + tile.state_bytes()), tile.state_bytes());
      EXPECT_EQ(std::ranges::count_if(stretches, [&](const ByteRange& s) { return s.begin >= begin && s.end <= begin + tile.state_bytes(); }), 3);
    }
    request.offload_optimizer = OffloadDevice::none;
    EXPECT_TRUE(host_stretches(build_plan(request)).empty()) << "nothing is updated on the host";
  }
}

TEST(Plan, ElementsHavePositionsOfTheirOwn) {
  EXPECT_EQ(model_position(0, 0), 0u);
  EXPECT_EQ(model_position(0, 77), 77u);
  EXPECT_GT(model_position(1, 0), model_position(0, std::int64_t{1} << 39));
  EXPECT_EQ(model_position(3, 512) % kMomentBlock, 0u);
}

TEST(Plan, IsAFunctionOfItsRequest) {
  EXPECT_EQ(build_plan(small_request()).hash, build_plan(small_request()).hash);
  PlanRequest other = small_request();
  other.prefetch_depth = 3;
  other.offload_optimizer = OffloadDevice::nvme;
  EXPECT_NE(build_plan(other).hash, build_plan(small_request()).hash);
  PlanRequest lion = small_request(), sgd_with_momentum = small_request();  // as many bytes
  lion.state.kind = OptimizerKind::lion;
  sgd_with_momentum.state.kind = OptimizerKind::sgd_momentum;
  EXPECT_NE(build_plan(lion).hash, build_plan(sgd_with_momentum).hash);
}

}  // namespace
}  // namespace spillway
