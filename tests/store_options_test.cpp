// What a configuration and a plan make of the swap store, and that where things lie changes nothing.
#include "runtime/store_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/training.h"

namespace spillway {
namespace {

using testing::make_engine;
using testing::plan_of;
using testing::RunSetup;
using testing::ScratchFolder;
using testing::tiny_run;
using testing::train;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RunSetup run_on_nvme(const std::string& weights_folder, const std::string& state_folder) {
  RunSetup setup = tiny_run();
  setup.config.offload_param.device = setup.config.offload_optimizer.device = OffloadDevice::nvme;
  setup.config.offload_param.nvme_paths = {weights_folder};
  setup.config.offload_optimizer.nvme_paths = {state_folder};
  return setup;
}

TEST(StoreOptions, EachKindOfStateLiesOnItsSectionsPath) {
  const RunSetup setup = run_on_nvme("/fast", "/large");
  const Plan plan = plan_of(setup);
  const SwapStoreOptions options = swap_store_options(setup.config, plan).value();
  ASSERT_EQ(options.paths.size(), 2u);
  EXPECT_EQ(options.paths[0].folder, "/fast");
  EXPECT_EQ(options.paths[1].folder, "/large");
  ASSERT_EQ(options.extents.size(), plan.extents.size());
  int weights = 0, state = 0;
  for (std::size_t e = 0; e < plan.extents.size(); ++e) {
    EXPECT_EQ(options.extents[e].name, plan.extents[e].name);
    EXPECT_EQ(options.extents[e].bytes, plan.extents[e].bytes);
    const bool is_state = plan.buffers[static_cast<std::size_t>(plan.extents[e].buffer)].owner == Owner::optimizer_state;
    ++(is_state ? state : weights);
    EXPECT_THAT(options.extents[e].paths, ElementsAre(is_state ? 1 : 0));
  }
  EXPECT_GT(weights, 0);
  EXPECT_GT(state, 0);
  EXPECT_THAT(options.contents, HasSubstr("rank 0 of 1, adam with fp32 moments, bf16 weights"));
}

TEST(StoreOptions, StateMayLieInEveryFolderOfItsList) {
  RunSetup setup = run_on_nvme("/fast", "/large");
  setup.config.offload_optimizer.nvme_paths = {"/large", "/fast", "/old"};
  const SwapStoreOptions options = swap_store_options(setup.config, plan_of(setup)).value();
  ASSERT_EQ(options.paths.size(), 3u);
  for (const SwapExtent& extent : options.extents) EXPECT_THAT(extent.paths, ::testing::AnyOf(ElementsAre(0), ElementsAre(1, 0, 2))) << extent.name;
}

TEST(StoreOptions, OneFolderOfBothSectionsIsOnePath) {
  const RunSetup setup = run_on_nvme("/both", "/both");
  EXPECT_EQ(swap_store_options(setup.config, plan_of(setup)).value().paths.size(), 1u);
}

TEST(StoreOptions, NothingOnNvmeMeansNoStore) {
  const RunSetup setup = tiny_run();
  EXPECT_FALSE(swap_store_options(setup.config, plan_of(setup)).has_value());
}

TEST(StoreOptions, TakesTheAioSection) {
  RunSetup setup = run_on_nvme("/a", "/a");
  setup.config.aio = {.block_size = 100'000, .queue_depth = 17, .intra_op_parallelism = 3, .single_submit = false, .overlap_events = false};
  setup.config.spillway.submission_polling = setup.config.spillway.completion_polling = true;
  setup.config.spillway.io_engine = "libaio";
  setup.config.spillway.verify = false;
  const SwapStoreOptions options = swap_store_options(setup.config, plan_of(setup)).value();
  EXPECT_EQ(options.block_bytes, 102'400) << "whole pages";
  EXPECT_EQ(options.engine.depth, 17);
  EXPECT_EQ(options.rings, 3);
  EXPECT_FALSE(options.single_submit);
  EXPECT_FALSE(options.overlap_events);
  EXPECT_TRUE(options.engine.submission_polling);
  EXPECT_TRUE(options.engine.completion_polling);
  EXPECT_EQ(options.engine.name, "libaio");
  EXPECT_FALSE(options.verify);
}

TEST(StoreOptions, WithoutAnAioSectionTheDiskIsMeasured) {
  const RunSetup setup = run_on_nvme("/a", "/a");
  const SwapStoreOptions options = swap_store_options(setup.config, plan_of(setup)).value();
  EXPECT_EQ(options.block_bytes, 1 << 20);
  EXPECT_EQ(options.engine.depth, 0);
  const ScratchFolder folder;
  const std::unique_ptr<Engine> engine = make_engine(run_on_nvme(folder.path(), folder.path()));
  const int depth = engine->store()->health().front().depth;
  EXPECT_GE(depth, 4);
  EXPECT_LE(depth, 128);
}

TEST(StoreOptions, WhereStateLiesAndHowItIsMovedChangesNoBit) {
  const ScratchFolder a, b;
  RunSetup setup = run_on_nvme(a.path(), a.path());
  setup.steps = 4;
  const std::uint64_t expected = train(setup).state_hash;
  RunSetup apart = run_on_nvme(a.path(), b.path());
  apart.steps = 4;
  apart.config.aio = {.block_size = 4096, .queue_depth = 2, .intra_op_parallelism = 2, .single_submit = false, .overlap_events = false};
  EXPECT_EQ(train(apart).state_hash, expected);
  RunSetup striped = run_on_nvme(a.path(), a.path());
  striped.steps = 4;
  striped.config.offload_param.nvme_paths = striped.config.offload_optimizer.nvme_paths = {b.path(), a.path()};
  EXPECT_EQ(train(striped).state_hash, expected);
}

}  // namespace
}  // namespace spillway
