#include "runtime/store_options.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "zero/partition.h"

namespace spillway {

namespace {

// The folders that a buffer of this owner may lie in.
const std::vector<int>& paths_for(Owner owner, const NvmeFolders& folders) {
  switch (owner) {
    case Owner::weights: return folders.weights;
    case Owner::gradients: return folders.gradients;
    case Owner::activations: return folders.activations;
    default: return folders.optimizer_state;
  }
}

std::string contents_of(const Plan& plan) {
  const PlanRequest& request = plan.request;
  return fmt::format("rank {} of {}, {} with {} moments, {} weights", request.rank, request.world_size, traits_of(request.state.kind).name,
                     name_of(request.state.moments), name_of(request.dtype));
}

}  // namespace

std::optional<SwapStoreOptions> swap_store_options(const Config& config, const Plan& plan) {
  if (plan.extents.empty()) return std::nullopt;
  SwapStoreOptions options;
  const NvmeFolders folders = nvme_folders(config);
  for (const std::string& folder : folders.paths) options.paths.push_back({folder});
  for (const ExtentPlan& extent : plan.extents) {
    options.extents.push_back({extent.name, extent.bytes, paths_for(plan.buffers[static_cast<std::size_t>(extent.buffer)].owner, folders)});
  }
  options.contents = contents_of(plan);
  options.verify = config.spillway.verify;
  options.block_bytes = std::min(round_up(config.aio.block_size.value_or(options.block_bytes), SwapStore::alignment), IoEngine::max_transfer_bytes);
  options.rings = config.aio.intra_op_parallelism;
  options.single_submit = config.aio.single_submit;
  options.overlap_events = config.aio.overlap_events;
  options.engine.name = config.spillway.io_engine;
  options.engine.depth = static_cast<int>(config.aio.queue_depth.value_or(0));
  options.engine.submission_polling = config.spillway.submission_polling;
  options.engine.completion_polling = config.spillway.completion_polling;
  return options;
}

}  // namespace spillway
