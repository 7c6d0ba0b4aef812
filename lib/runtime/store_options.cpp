#include "runtime/store_options.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "zero/partition.h"

namespace spillway {

namespace {

// The index of the folder, which is listed once however many sections name it; none if it is empty.
std::vector<int> path_index(std::vector<SwapPath>& paths, const std::string& folder) {
  if (folder.empty()) return {};
  const auto found = std::ranges::find(paths, folder, &SwapPath::folder);
  const auto index = static_cast<int>(found - paths.begin());
  if (found == paths.end()) paths.push_back({folder});
  return {index};
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
  const std::vector<int> for_weights = path_index(options.paths, config.offload_param.nvme_path);
  const std::vector<int> for_state = path_index(options.paths, config.offload_optimizer.nvme_path);
  for (const ExtentPlan& extent : plan.extents) {
    const Owner owner = plan.buffers[static_cast<std::size_t>(extent.buffer)].owner;
    options.extents.push_back({extent.name, extent.bytes, owner == Owner::weights           ? for_weights
                                                          : owner == Owner::optimizer_state ? for_state
                                                                                            : std::vector<int>{}});
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
