#include "runtime/replicas.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"
#include "spillway/error.h"

namespace spillway {

namespace {

struct LayerHashes {
  std::uint64_t weights = 0;  // of a layer kept whole
  std::uint64_t state = 0;    // of this rank's shard
};

std::vector<LayerHashes> hash_layers(const Plan& plan, StateAccess& state) {
  std::vector<LayerHashes> hashes(plan.layers.size());
  for (std::size_t c = 0; c < plan.weights_chunks.size(); ++c) {
    const auto layer = static_cast<std::size_t>(plan.weights_chunks[c].layer);
    if (!plan.layers[layer].resident) continue;
    // Chunks are cut at shards, which differ from rank to rank: the hash of elements does not.
    const std::span<const std::byte> bytes = state.load_chunk(static_cast<int>(c));
    hashes[layer].weights += plan.request.dtype == DType::f32
                                 ? element_hash(layer, plan.weights_chunks[c].begin, std::span(reinterpret_cast<const std::uint32_t*>(bytes.data()), bytes.size() / 4))
                                 : element_hash(layer, plan.weights_chunks[c].begin, std::span(reinterpret_cast<const std::uint16_t*>(bytes.data()), bytes.size() / 2));
  }
  if (plan.request.world_size == plan.partition_size) return hashes;
  for (std::size_t t = 0; t < plan.tiles.size(); ++t) {
    const TileState held = state.load(static_cast<int>(t));
    std::uint64_t& hash = hashes[static_cast<std::size_t>(plan.tiles[t].layer)].state;
    hash = hash * 31 + hash_bytes(std::as_bytes(held.master));
    for (const std::span<float> moment : held.moments) hash = hash * 31 + hash_bytes(std::as_bytes(moment));
  }
  state.forget();
  return hashes;
}

// Of ranks that hold the same, the value most of them have is taken for the right one.
std::vector<int> outliers(const std::vector<std::pair<int, std::uint64_t>>& values) {
  std::map<std::uint64_t, int> votes;
  for (const auto& [rank, value] : values) ++votes[value];
  const auto most = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<int> ranks;
  for (const auto& [rank, value] : values) {
    if (value != most->first) ranks.push_back(rank);
  }
  return ranks;
}

void refuse(const std::vector<int>& ranks, std::string_view what, const std::string& layer) {
  if (ranks.empty()) return;
  throw CommError(fmt::format("[comm] compare what ranks hold in common: the {} of {} on rank {} differ from the other ranks'; that rank's memory, disk "
                              "or arithmetic went wrong, and nothing after the last comparison can be trusted: resume from a checkpoint",
                              what, layer, fmt::join(ranks, ", ")));
}

}  // namespace

void compare_replicas(const Plan& plan, StateAccess& state, RankLinks& links) {
  const auto world = static_cast<std::size_t>(plan.request.world_size);
  const std::vector<LayerHashes> mine = hash_layers(plan, state);
  std::vector<LayerHashes> all(mine.size() * world);
  links.control().exchange(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (std::size_t l = 0; l < mine.size(); ++l) {
    std::vector<std::pair<int, std::uint64_t>> weights;
    std::vector<std::vector<std::pair<int, std::uint64_t>>> shards(static_cast<std::size_t>(plan.partition_size));
    for (std::size_t r = 0; r < world; ++r) {
      const LayerHashes& hashes = all[r * mine.size() + l];
      weights.emplace_back(static_cast<int>(r), hashes.weights);
      shards[r % shards.size()].emplace_back(static_cast<int>(r), hashes.state);
    }
    refuse(outliers(weights), "weights", plan.layers[l].name);
    for (const auto& shard : shards) refuse(outliers(shard), "optimizer states", plan.layers[l].name);
  }
}

}  // namespace spillway
