// What collectives cost, against values worked out by hand; and profiles, which the rates come from.
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/cost.h"
#include "spillway/error.h"
#include "support/plan_requests.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using ::testing::HasSubstr;

// A plan of one collective, in which each rank of the group has 100 bytes.
Plan plan_of(int world, int partition, int rank, RankGroup group, TaskKind kind) {
  Plan plan;
  plan.request.world_size = world;
  plan.request.rank = rank;
  plan.partition_size = partition;
  const int members = group == RankGroup::world ? world : group == RankGroup::partition ? partition : world / partition;
  CollectivePlan collective{group, {}, {}, {}};
  for (int i = 0; i < members; ++i) collective.parts.push_back({i * 100, 100});
  plan.collectives.push_back(collective);
  Task task;
  task.kind = kind;
  task.lane = Lane::comm;
  task.collective = 0;
  task.bytes = (members - 1) * 100;
  plan.step.tasks.push_back(task);
  return plan;
}

CollectiveTraffic traffic(const Plan& plan, int ranks_per_node) { return traffic_of(plan, plan.step.tasks[0], ranks_per_node); }

TEST(CollectiveCost, StaysWithinANodeThatHoldsTheGroup) {
  for (const int ranks_per_node : {0, 8, 16}) {
    const CollectiveTraffic t = traffic(plan_of(8, 8, 3, RankGroup::world, TaskKind::all_gather), ranks_per_node);
    EXPECT_EQ(t.rank_bytes, 700);
    EXPECT_EQ(t.node_bytes, 0);
    EXPECT_EQ(t.nodes, 1);
  }
}

// Two nodes of 8: what the other 8 ranks hold enters once, and all 8 here use it.
TEST(CollectiveCost, BringsWhatOthersHoldIntoANodeOnce) {
  const CollectiveTraffic t = traffic(plan_of(16, 16, 3, RankGroup::world, TaskKind::all_gather), 8);
  EXPECT_EQ(t.rank_bytes, 1500);
  EXPECT_EQ(t.node_bytes, 800);
  EXPECT_EQ(t.nodes, 2);
}

// Each of 8 ranks sends 100 bytes to each of 8 ranks of the other node.
TEST(CollectiveCost, SendsEveryPairItsOwnPartOfAGradient) {
  const CollectiveTraffic t = traffic(plan_of(16, 16, 3, RankGroup::world, TaskKind::reduce_scatter), 8);
  EXPECT_EQ(t.rank_bytes, 1500);
  EXPECT_EQ(t.node_bytes, 6400);
  EXPECT_EQ(t.nodes, 2);
}

// 12 ranks on nodes of 8: 4 on the second, which take in what 8 hold, or send to 8.
TEST(CollectiveCost, CountsTheRanksOfALastNodeThatIsNotFull) {
  EXPECT_EQ(traffic(plan_of(12, 12, 9, RankGroup::world, TaskKind::all_gather), 8).node_bytes, 800);
  EXPECT_EQ(traffic(plan_of(12, 12, 9, RankGroup::world, TaskKind::reduce_scatter), 8).node_bytes, 4 * 800);
  EXPECT_EQ(traffic(plan_of(12, 12, 3, RankGroup::world, TaskKind::reduce_scatter), 8).node_bytes, 8 * 400);
}

// Node-local shards: gathers stay inside; ranks that hold the same shard meet across nodes, one of each node.
TEST(CollectiveCost, FollowsGroupsOverNodes) {
  EXPECT_EQ(traffic(plan_of(16, 8, 11, RankGroup::partition, TaskKind::all_gather), 8).node_bytes, 0);
  const CollectiveTraffic one_a_node = traffic(plan_of(16, 8, 11, RankGroup::replicas, TaskKind::gather_gradient), 8);
  EXPECT_EQ(one_a_node.rank_bytes, 100);
  EXPECT_EQ(one_a_node.node_bytes, 8 * 100);  // 8 such groups share the network
  EXPECT_EQ(one_a_node.nodes, 2);
  // Ranks 1 and 5 here, 9 and 13 there; four such groups.
  const CollectiveTraffic two_a_node = traffic(plan_of(16, 4, 5, RankGroup::replicas, TaskKind::gather_gradient), 8);
  EXPECT_EQ(two_a_node.node_bytes, 4 * 200);
  EXPECT_EQ(two_a_node.nodes, 2);
}

TEST(CollectiveCost, IsTheSlowerLinkPlusAMessagePerNode) {
  MachineRates rates;
  rates.comm_bytes = 100.0;
  rates.comm_latency_s = 2.0;
  rates.task_overhead_s = 0.5;
  const Plan plan = plan_of(16, 16, 3, RankGroup::world, TaskKind::all_gather);
  const auto seconds = [&] { return task_seconds(plan, plan.step, rates)[0]; };
  EXPECT_DOUBLE_EQ(seconds(), 0.5 + 2.0 + 15.0);
  rates.ranks_per_node = 8;
  rates.network_latency_s = 0.25;
  EXPECT_DOUBLE_EQ(seconds(), 0.5 + 2.0 + 0.25 + 15.0) << "without a rate, the network never bounds";
  rates.network_bytes = 20.0;
  EXPECT_DOUBLE_EQ(seconds(), 0.5 + 2.0 + 0.25 + 40.0);
  rates.network_bytes = 200.0;
  EXPECT_DOUBLE_EQ(seconds(), 0.5 + 2.0 + 0.25 + 15.0);
}

// In the order of compute, collectives still move at their own rate; rounding a bucket beforehand meets nobody.
TEST(CollectiveCost, DoesNotDependOnTheLane) {
  MachineRates rates;
  rates.comm_bytes = 100.0;
  rates.comm_latency_s = 2.0;
  rates.task_overhead_s = 0.0;
  rates.device_bytes = 1500.0;
  Plan plan = plan_of(16, 16, 3, RankGroup::world, TaskKind::reduce_scatter);
  plan.step.tasks[0].lane = Lane::compute;
  EXPECT_DOUBLE_EQ(task_seconds(plan, plan.step, rates)[0], 17.0);
  plan.step.tasks[0].kind = TaskKind::pack_gradient;
  EXPECT_DOUBLE_EQ(task_seconds(plan, plan.step, rates)[0], 1.0);
}

// 3 units of the 16-bit model at stage 3, of which every rank holds its share already.
TEST(StepTraffic, IsWhatTheStagePromises) {
  PlanRequest request = testing::small_request();
  for (LayerShape& layer : request.layers) layer.num_elements = 64000;
  request.zero_stage = 3;
  request.world_size = 16;
  request.max_reuse_distance = 0;
  const StepTraffic t = step_traffic(build_plan(request), 8);
  const std::int64_t layer = 2 * 64000, layers = 5;
  // The head is gathered once; the others twice.
  EXPECT_EQ(t.gathered, (2 * layers - 1) * layer * 15 / 16);
  EXPECT_EQ(t.reduced, layers * layer * 15 / 16);
  EXPECT_EQ(t.sent, t.gathered + t.reduced);
  EXPECT_EQ(t.node, (2 * layers - 1) * layer / 2 + 8 * layers * layer / 2);
}

class Profile : public ::testing::Test {
 protected:
  MachineRates load(const std::string& text) {
    std::ofstream(file()) << text;
    return load_rates(file());
  }
  std::string error(const std::string& text) {
    try {
      load(text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }
  std::string file() const { return folder_.path() + "/profile.json"; }

  testing::TestFolder folder_;
};

TEST_F(Profile, SaysHowRanksAreConnected) {
  const MachineRates rates = load(R"({"_source": "a page", "comm_bytes": 2e11, "network_bytes": 1e11, "network_latency_s": 5e-6, "ranks_per_node": 8})");
  EXPECT_EQ(rates.comm_bytes, 2e11);
  EXPECT_EQ(rates.network_bytes, 1e11);
  EXPECT_EQ(rates.network_latency_s, 5e-6);
  EXPECT_EQ(rates.ranks_per_node, 8);
  EXPECT_EQ(rates.matmul_flops, MachineRates{}.matmul_flops);
  EXPECT_EQ(load(rates_json(rates)), rates);
}

TEST_F(Profile, RefusesWhatIsNoRate) {
  EXPECT_THAT(error(R"({"comm_bytes": 0})"), HasSubstr("comm_bytes in " + file() + " is 0; it must be a number above 0"));
  EXPECT_THAT(error(R"({"network_bytes": -1})"), HasSubstr("network_bytes in " + file() + " is -1; it must be a number of at least 0"));
  EXPECT_THAT(error(R"({"ranks_per_node": 1.5})"), HasSubstr("ranks_per_node in " + file() + " is 1.5; it must be a whole number of at least 0"));
  EXPECT_THAT(error(R"({"cores": 0})"), HasSubstr("whole number of at least 1"));
  EXPECT_THAT(error(R"({"network_byte": 1})"), HasSubstr("unknown field \"network_byte\" (did you mean \"network_bytes\"?)"));
}

}  // namespace
}  // namespace spillway
