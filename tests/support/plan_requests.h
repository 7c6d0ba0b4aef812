// Plan requests for tests: one small model by hand, and random (model, config, budget) triples.
#pragma once

#include <cstdint>
#include <random>

#include "spillway/plan.h"

namespace spillway::testing {

inline PlanRequest small_request() {
  PlanRequest request;
  const auto layer = [&](std::string name, LayerKind kind, std::int64_t n, int tied, std::int64_t workspace) {
    request.layers.push_back({std::move(name), kind, n, tied, workspace, 2 * workspace, 1e6, 3e6});
  };
  layer("embedding", LayerKind::embedding, 20000, -1, 0);
  for (int block = 0; block < 3; ++block) layer("block " + std::to_string(block), LayerKind::block, 50000, -1, 300000);
  layer("head", LayerKind::head, 128, 0, 40000);
  request.shape = {2, 64};
  request.channels = 64;
  request.tile_size = 8192;
  return request;
}

inline PlanRequest random_request(std::mt19937_64& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
  PlanRequest request;
  const std::int64_t blocks = pick(1, 6);
  const auto layer = [&](std::string name, LayerKind kind, std::int64_t n, int tied) {
    request.layers.push_back({std::move(name), kind, n, tied, pick(0, 1) * pick(1, 200000), pick(1, 400000), 1e6, 3e6});
  };
  layer("embedding", LayerKind::embedding, pick(1, 60000), -1);
  for (std::int64_t b = 0; b < blocks; ++b) layer("block " + std::to_string(b), LayerKind::block, pick(1, 90000), -1);
  layer("head", LayerKind::head, pick(1, 300), pick(0, 3) == 0 ? -1 : 0);
  request.shape = {pick(1, 4), pick(1, 64)};
  request.channels = pick(1, 96);
  request.accumulation_steps = pick(1, 3);
  request.dtype = static_cast<DType>(pick(0, 2));
  request.wire = static_cast<DType>(pick(0, 2));
  request.tile_size = 2048 * pick(1, 12);
  request.state = {static_cast<OptimizerKind>(pick(0, kOptimizerKinds - 1)), static_cast<MomentFormat>(pick(0, kMomentFormats - 1))};
  request.prefetch_depth = static_cast<int>(pick(1, 4));
  request.placement = static_cast<PlacementPolicy>(pick(0, 1));
  request.offload_param = static_cast<OffloadDevice>(pick(0, 2));
  request.offload_param_ratio = static_cast<double>(pick(0, 4)) / 4.0;
  request.offload_optimizer = static_cast<OffloadDevice>(pick(0, 2));
  request.offload_optimizer_ratio = static_cast<double>(pick(0, 4)) / 4.0;
  request.persistence_threshold = pick(0, 1) * pick(0, 2000);
  request.offload_activations = static_cast<OffloadDevice>(pick(0, 2));
  request.offload_gradients = static_cast<OffloadDevice>(pick(1, 2));
  for (auto& budget : request.budgets) {
    if (pick(0, 2) == 0) budget = pick(100'000, 6'000'000);
  }
  return request;
}

// One of several ranks, some of which may have nothing of a layer; layers may be frozen in part or whole.
inline PlanRequest random_request_of_ranks(std::mt19937_64& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
  PlanRequest request = random_request(random);
  request.world_size = static_cast<int>(pick(1, 8));
  request.rank = static_cast<int>(pick(0, request.world_size - 1));
  request.zero_stage = static_cast<int>(pick(0, 3));
  if (request.zero_stage < 3) request.offload_param = OffloadDevice::none;
  if (request.world_size % 2 == 0 && request.zero_stage > 0) request.hpz_partition_size = static_cast<int>(pick(1, 2)) * (request.world_size / 2);
  request.reduce_bucket_size = pick(0, 1) == 0 ? 500'000'000 : pick(100, 50'000);
  request.allgather_bucket_size = pick(0, 1) == 0 ? 500'000'000 : pick(100, 50'000);
  request.prefetch_bucket_size = pick(0, 2) * 50'000;
  request.max_reuse_distance = pick(0, 1);
  request.overlap_comm = pick(0, 3) > 0;
  request.snapshot_bytes = pick(0, 1) * pick(1, 1'000'000);
  for (LayerShape& layer : request.layers) {
    if (pick(0, 4) == 0) layer.num_elements = pick(1, 17);
    if (pick(0, 3) == 0) layer.num_frozen = pick(0, 2) == 0 ? layer.num_elements : pick(0, layer.num_elements);
  }
  return request;
}

}  // namespace spillway::testing
