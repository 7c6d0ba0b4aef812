#include "runtime/snapshot_reader.h"

#include "runtime/param_ranges.h"
#include "zero/partition.h"

namespace spillway {

SnapshotReader::SnapshotReader(const Plan& plan, PlanMemory& memory, const std::vector<std::unique_ptr<Layer>>& layers, Device& device,
                               SwapStore* store)
    : plan_(plan), memory_(memory), stream_(device.make_stream("snapshot")), channel_(store == nullptr ? nullptr : store->open_channel(IoPriority::background)) {
  for (const SnapshotPlan& snapshot : plan.snapshots) items_.push_back(describe(snapshot, layers));
}

SnapshotItem SnapshotReader::describe(const SnapshotPlan& snapshot, const std::vector<std::unique_ptr<Layer>>& layers) const {
  SnapshotItem item{};
  item.frozen = snapshot.tile < 0;
  const WeightsChunk& chunk = plan_.weights_chunks[static_cast<std::size_t>(
      item.frozen ? snapshot.chunk : plan_.tiles[static_cast<std::size_t>(snapshot.tile)].weights_chunk)];
  if (item.frozen) {
    item.layout.n = chunk.num_elements();
    item.layout.bytes = round_up(chunk.num_elements() * size_of(plan_.request.dtype), 4096);
  } else {
    item.layout = plan_.tiles[static_cast<std::size_t>(snapshot.tile)].layout;
  }
  for_each_param(*layers[static_cast<std::size_t>(chunk.layer)], {chunk.begin, chunk.end},
                 [&](const ParamSpec& param, std::int64_t first, ElementRange range) {
                   item.ranges.push_back({param.name, first, first + range.size()});
                 });
  return item;
}

void SnapshotReader::read_extent(int extent, std::byte* to) {
  channel_->read(extent, to, 0);
  while (channel_->in_flight() > 0) channel_->completions(true);
}

void SnapshotReader::copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  stream_->copy(to, from, bytes);
  stream_->synchronize();
}

void SnapshotReader::read(std::size_t item, std::span<std::byte> out) {
  const SnapshotPlan& snapshot = plan_.snapshots[item];
  if (snapshot.tile >= 0) {
    const TilePlan& tile = plan_.tiles[static_cast<std::size_t>(snapshot.tile)];
    if (tile.tier == Tier::nvme) return read_extent(tile.state_extent, out.data());
    return copy(out.data(), memory_.at(tile.state_buffer), tile.state_bytes());
  }
  const WeightsChunk& chunk = plan_.weights_chunks[static_cast<std::size_t>(snapshot.chunk)];
  if (chunk.extent >= 0) return read_extent(chunk.extent, out.data());
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(chunk.layer)];
  const std::int64_t width = size_of(plan_.request.dtype);
  copy(out.data(), memory_.at(layer.weights_buffer) + layer.weights_offset(chunk.begin, width), chunk.num_elements() * width);
}

void SnapshotReader::copy_out(std::size_t item, SnapshotSink& sink) {
  read(item, sink.acquire(item));
  sink.submit(item);
}

}  // namespace spillway
