// Plans of many ranks: sound for everyone, and moving exactly the bytes that the stages promise.
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "spillway/plan.h"
#include "support/plan_requests.h"
#include "support/sanitizers.h"
#include "zero/partition.h"

namespace spillway {
namespace {

using testing::fewer_if_sanitized;
using testing::random_request_of_ranks;
using testing::small_request;

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<Plan> plans_of_all_ranks(PlanRequest request) {
  std::vector<Plan> plans;
  for (request.rank = 0; request.rank < request.world_size; ++request.rank) plans.push_back(build_plan(request));
  return plans;
}

PlanRequest request_of(int stage, int world, std::int64_t accumulation) {
  PlanRequest request = small_request();
  request.zero_stage = stage;
  request.world_size = world;
  request.accumulation_steps = accumulation;
  request.max_reuse_distance = 0;
  return request;
}

TEST(PlanOfRanks, IsSoundForThousandsOfRandomRanks) {
  std::mt19937_64 random(20261201);
  for (std::uint64_t i = 0; i < fewer_if_sanitized(2000, 200); ++i) {
    const PlanRequest request = random_request_of_ranks(random);
    const Plan plan = build_plan(request);
    const std::vector<std::string> violations = check_plan(plan);
    ASSERT_TRUE(violations.empty()) << "request " << i << ", rank " << request.rank << " of " << request.world_size << ", stage "
                                    << request.zero_stage << ":\n" << joined(violations);
  }
}

TEST(PlanOfRanks, AgreesOnCollectivesWhateverTheRequest) {
  std::mt19937_64 random(20261202);
  for (std::uint64_t i = 0; i < fewer_if_sanitized(300, 30); ++i) {
    const std::vector<Plan> plans = plans_of_all_ranks(random_request_of_ranks(random));
    for (const Plan& plan : plans) ASSERT_EQ(plan.common_hash, plans[0].common_hash) << "request " << i << ", rank " << plan.request.rank;
  }
}

// What one rank sends another expects, collective by collective.
TEST(PlanOfRanks, SendsWhatTheOthersExpect) {
  std::mt19937_64 random(20261203);
  for (std::uint64_t i = 0; i < fewer_if_sanitized(200, 25); ++i) {
    const std::vector<Plan> plans = plans_of_all_ranks(random_request_of_ranks(random));
    for (std::size_t c = 0; c < plans[0].collectives.size(); ++c) {
      for (const Plan& to : plans) {
        if (to.collectives[c].receive_parts.empty()) continue;
        for (const Plan& from : plans) {
          const auto sender = static_cast<std::size_t>(from.request.rank), receiver = static_cast<std::size_t>(to.request.rank);
          ASSERT_EQ(from.collectives[c].parts[receiver].bytes, to.collectives[c].receive_parts[sender].bytes);
          ASSERT_EQ(from.collectives[c].sources[receiver], to.collectives[c].sources[receiver]);
        }
      }
    }
  }
}

// Every trained element has one owner in each group of ranks that share state, and one rank in the world that reduces its
// gradient; every element of the model is saved exactly once.
TEST(PlanOfRanks, LosesAndRepeatsNothing) {
  std::mt19937_64 random(20261204);
  for (std::uint64_t i = 0; i < fewer_if_sanitized(200, 25); ++i) {
    const std::vector<Plan> plans = plans_of_all_ranks(random_request_of_ranks(random));
    for (std::size_t l = 0; l < plans[0].layers.size(); ++l) {
      std::vector<int> owned(static_cast<std::size_t>(plans[0].layers[l].num_elements)), reduced = owned, saved = owned;
      for (const Plan& plan : plans) {
        const LayerPlan& layer = plan.layers[l];
        for (std::int64_t e = layer.owned.begin; e < layer.owned.end; ++e) ++owned[static_cast<std::size_t>(e)];
        for (std::int64_t e = layer.slice.begin; e < layer.slice.end; ++e) ++reduced[static_cast<std::size_t>(e)];
        for (const SnapshotPlan& snapshot : plan.snapshots) {
          const int chunk = snapshot.tile >= 0 ? plan.tiles[static_cast<std::size_t>(snapshot.tile)].weights_chunk : snapshot.chunk;
          const WeightsChunk& range = plan.weights_chunks[static_cast<std::size_t>(chunk)];
          if (range.layer != static_cast<int>(l)) continue;
          for (std::int64_t e = range.begin; e < range.end; ++e) ++saved[static_cast<std::size_t>(e)];
        }
      }
      const auto replicas = static_cast<int>(plans[0].request.world_size / plans[0].partition_size);
      for (std::int64_t e = 0; e < plans[0].layers[l].num_elements; ++e) {
        const bool trained = e < plans[0].layers[l].num_trainable;
        ASSERT_EQ(owned[static_cast<std::size_t>(e)], trained ? replicas : 0);
        ASSERT_EQ(reduced[static_cast<std::size_t>(e)], trained ? 1 : 0);
        ASSERT_EQ(saved[static_cast<std::size_t>(e)], 1);
      }
    }
  }
}

// In elements of the model, per step.
struct Volumes {
  std::int64_t all_gathers = 0, reduce_scatters = 0;
};

Volumes volumes_of(const Plan& plan) {
  Volumes volumes;
  for (const Task& task : plan.step.tasks) {
    if (task.collective < 0 || task.kind == TaskKind::pack_gradient) continue;
    const std::int64_t elements = plan.collectives[static_cast<std::size_t>(task.collective)].payload_bytes() / 2;
    (task.kind == TaskKind::reduce_scatter ? volumes.reduce_scatters : volumes.all_gathers) += elements;
  }
  return volumes;
}

// zero-requirements: 2 units of the 16-bit model at stages 0 and 1, A + 1 at stage 2, 3A at stage 3. One layer is an
// exception and said to be one: the head's few own parameters are used once a micro-batch, since its forward and its
// backward are one task, and so they are gathered once, not twice.
TEST(PlanOfRanks, MovesExactlyTheBytesOfItsStage) {
  for (const int world : {2, 3, 4, 8}) {
    for (const std::int64_t steps : {1, 2, 5}) {
      const std::int64_t model = build_plan(request_of(0, world, steps)).num_parameters();
      const std::int64_t head = small_request().layers.back().num_elements;
      for (const std::int64_t bucket : {500'000'000, 1000}) {
        for (const int stage : {0, 1, 2, 3}) {
          PlanRequest request = request_of(stage, world, steps);
          request.reduce_bucket_size = request.allgather_bucket_size = bucket;
          const Volumes volumes = volumes_of(build_plan(request));
          EXPECT_EQ(volumes.reduce_scatters, model * (stage >= 2 ? steps : 1)) << "stage " << stage;
          EXPECT_EQ(volumes.all_gathers, stage == 3 ? steps * (2 * model - head) : model) << "stage " << stage;
        }
      }
    }
  }
}

TEST(PlanOfRanks, GathersAnewOnlyWhatItMayNotKeep) {
  PlanRequest request = request_of(3, 4, 1);
  const std::int64_t without = volumes_of(build_plan(request)).all_gathers;
  request.max_reuse_distance = 1'000'000'000;
  // The last block turns from forward to backward around the head, and the embedding serves the head.
  EXPECT_EQ(volumes_of(build_plan(request)).all_gathers, without - request.layers[3].num_elements);
}

TEST(PlanOfRanks, KeepsSmallLayersOnEveryRank) {
  PlanRequest request = request_of(3, 4, 2);
  request.persistence_threshold = request.layers.back().num_elements;
  const Plan plan = build_plan(request);
  EXPECT_TRUE(plan.layers.back().resident);
  EXPECT_FALSE(plan.layers.front().resident);
  std::map<TaskKind, int> kinds;
  for (const Task& task : plan.step.tasks) {
    if (task.layer == static_cast<int>(plan.layers.size()) - 1) ++kinds[task.kind];
  }
  EXPECT_EQ(kinds[TaskKind::all_gather], 0);
  EXPECT_EQ(kinds[TaskKind::all_gather_updated], 1);
}

TEST(PlanOfRanks, SendsNothingForWhatIsFrozen) {
  PlanRequest request = request_of(2, 4, 2);
  const Volumes all = volumes_of(build_plan(request));
  request.layers[1].num_frozen = request.layers[1].num_elements;
  request.layers[2].num_frozen = 30'000;
  const Plan plan = build_plan(request);
  const std::int64_t frozen = request.layers[1].num_elements + 30'000;
  EXPECT_EQ(volumes_of(plan).reduce_scatters, all.reduce_scatters - 2 * frozen);
  EXPECT_EQ(volumes_of(plan).all_gathers, all.all_gathers - frozen);
  EXPECT_EQ(plan.layers[1].num_tiles, 0) << "no state";
  EXPECT_EQ(plan.layers[1].gradient_buffer, -1);
}

// Bandwidth-centric: each rank moves its own 1/N over its own link and its own disk.
TEST(PlanOfRanks, EachPullsOnlyItsShareOverLinkAndDisk) {
  const auto bytes_of = [](const Plan& plan, Lane lane) {
    std::int64_t sum = 0;
    for (const Task& task : plan.step.tasks) sum += task.lane == lane ? task.bytes : 0;
    return sum;
  };
  PlanRequest request = request_of(3, 1, 1);
  request.offload_param = request.offload_optimizer = OffloadDevice::nvme;
  request.tile_size = 2048;
  request.layers[4].num_elements = 32'768;  // whole tiles in every shard, so that no padding is counted
  for (std::size_t l = 0; l < 4; ++l) request.layers[l].num_elements = 65'536;
  const Plan alone = build_plan(request);
  for (const int world : {2, 4, 8}) {
    request.world_size = world;
    for (const Plan& plan : plans_of_all_ranks(request)) {
      for (const Lane lane : {Lane::h2d, Lane::nvme_fetch, Lane::nvme_read, Lane::nvme_write}) {
        EXPECT_EQ(bytes_of(plan, lane) * world, bytes_of(alone, lane)) << name_of(lane) << " at world " << world;
      }
    }
  }
}

TEST(PlanOfRanks, BucketsBoundTheMemoryOfCommunication) {
  PlanRequest request = request_of(2, 4, 1);
  const auto peak = [&](std::int64_t bucket) {
    request.reduce_bucket_size = bucket;
    const Plan plan = build_plan(request);
    std::int64_t largest = 0;
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.owner == Owner::communication) largest = std::max(largest, buffer.bytes);
    }
    return largest;
  };
  EXPECT_LE(peak(4000), 4000 * 2);
  EXPECT_EQ(peak(500'000'000), 50'000 * 2) << "a bucket is never larger than its layer";
}

// The ledger's rows of what the stages share out, as the table of zero-requirements has them.
TEST(PlanOfRanks, HoldsTheBytesOfItsStage) {
  const auto persistent = [](const Plan& plan, Owner owner) {
    std::int64_t sum = 0;
    for (const Buffer& buffer : plan.buffers) sum += buffer.persistent && buffer.owner == owner ? buffer.bytes : 0;
    return sum;
  };
  for (const int world : {2, 4}) {
    PlanRequest request = request_of(0, world, 1);
    request.tile_size = 2048;
    for (LayerShape& layer : request.layers) layer.num_elements = 65'536;
    const std::int64_t model = 5 * 65'536;
    for (request.zero_stage = 0; request.zero_stage <= 3; ++request.zero_stage) {
      const Plan plan = build_plan(request);
      EXPECT_EQ(persistent(plan, Owner::optimizer_state), 12 * model / (request.zero_stage == 0 ? 1 : world));
      EXPECT_EQ(persistent(plan, Owner::weights), 2 * model / (request.zero_stage == 3 ? world : 1));
    }
  }
}

// Moments in 8 bits: a block of them is one rank's, whatever the world, and starts where a block of the layer does.
TEST(PlanOfRanks, DividesNoBlockOfMoments) {
  for (const int world : {1, 2, 3, 7}) {
    PlanRequest request = request_of(3, world, 1);
    request.state = {OptimizerKind::adam, MomentFormat::block8};
    for (const Plan& plan : plans_of_all_ranks(request)) {
      for (const TilePlan& tile : plan.tiles) {
        EXPECT_EQ(tile.begin % kMomentBlock, 0);
        EXPECT_TRUE(tile.end % kMomentBlock == 0 || tile.end == plan.layers[static_cast<std::size_t>(tile.layer)].num_trainable);
      }
    }
  }
}

TEST(PlanOfRanks, DisagreesAboutOptimizersThatDiffer) {
  PlanRequest request = request_of(3, 2, 1);
  const std::uint64_t adam = build_plan(request).common_hash;
  request.state.kind = OptimizerKind::lion;
  EXPECT_NE(build_plan(request).common_hash, adam);
  request.state = {OptimizerKind::adam, MomentFormat::bf16};
  EXPECT_NE(build_plan(request).common_hash, adam);
}

// Ranks that share state within groups, whole copies across them.
TEST(PlanOfRanks, SharesWithinGroupsAndRepeatsAcrossThem) {
  PlanRequest request = request_of(3, 8, 1);
  request.hpz_partition_size = 2;
  request.rank = 5;
  const Plan plan = build_plan(request);
  const LayerPlan& layer = plan.layers[1];
  EXPECT_EQ(layer.owned, (ElementRange{25'000, 50'000})) << "the second of two";
  EXPECT_EQ(layer.slice, (ElementRange{25'000 + 2 * 6250, 25'000 + 3 * 6250})) << "the third of four replicas";
  for (const Task& task : plan.step.tasks) {
    if (task.kind == TaskKind::all_gather) {
      EXPECT_EQ(plan.collectives[static_cast<std::size_t>(task.collective)].parts.size(), 2u);
    }
    if (task.kind == TaskKind::gather_gradient) {
      EXPECT_EQ(plan.collectives[static_cast<std::size_t>(task.collective)].parts.size(), 4u);
    }
  }
}

}  // namespace
}  // namespace spillway
