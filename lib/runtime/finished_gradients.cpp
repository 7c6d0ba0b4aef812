#include "runtime/finished_gradients.h"

#include <algorithm>
#include <cstring>

namespace spillway {

FinishedGradients::FinishedGradients(const Plan& plan, PlanMemory& memory, Device& device, SwapStore* store, const ExtentIndex& extents)
    : plan_(plan), memory_(memory), extents_(extents), stream_(device.make_stream("gradients")),
      channel_(plan.gradient_tile_buffer < 0 ? nullptr : store->open_channel(IoPriority::urgent)) {}

std::span<const std::byte> FinishedGradients::read(const LayerPlan& layer, ElementRange elements) {
  memory_.note_use(plan_.gradient_piece_buffer, static_cast<std::int64_t>(piece().size()));
  move(layer, elements, Direction::here);
  return piece().first(static_cast<std::size_t>(elements.size() * size_of(layer.gradient_dtype)));
}

void FinishedGradients::write(const LayerPlan& layer, ElementRange elements) { move(layer, elements, Direction::back); }

void FinishedGradients::move(const LayerPlan& layer, ElementRange elements, Direction direction) {
  if (layer.gradient_tier == Tier::nvme) return move_tiles(layer, elements, direction);
  // The buffer holds this rank's slice where the cpu lane has summed it up, else all of the shard.
  const std::int64_t base = layer.square_sums_on_host ? layer.slice.begin : layer.owned.begin, width = size_of(layer.gradient_dtype);
  std::byte* home = memory_.at(layer.gradient_buffer) + (elements.begin - base) * width;
  std::byte* here = piece().data();
  const bool back = direction == Direction::back;
  stream_->copy(back ? home : here, back ? here : home, elements.size() * width);
  stream_->synchronize();
}

// A piece may begin in one tile and end in the next.
void FinishedGradients::move_tiles(const LayerPlan& layer, ElementRange elements, Direction direction) {
  const std::int64_t width = size_of(layer.gradient_dtype);
  std::int64_t at = elements.begin;
  for (auto t = layer.first_tile + static_cast<int>((at - layer.owned.begin) / plan_.request.tile_size); at < elements.end; ++t) {
    const TilePlan& tile = plan_.tiles[static_cast<std::size_t>(t)];
    const ElementRange part{at, std::min(elements.end, tile.end)};
    at = part.end;
    hold(t);
    std::byte* home = memory_.at(plan_.gradient_tile_buffer) + (part.begin - tile.begin) * width;
    std::byte* here = piece().data() + (part.begin - elements.begin) * width;
    const bool back = direction == Direction::back;
    std::memcpy(back ? home : here, back ? here : home, static_cast<std::size_t>(part.size() * width));
    changed_ = changed_ || back;
  }
}

int FinishedGradients::extent_of(int tile) const {
  const TilePlan& t = plan_.tiles[static_cast<std::size_t>(tile)];
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(t.layer)];
  const std::int64_t begin = (t.begin - layer.owned.begin) * size_of(layer.gradient_dtype);
  return extents_.within({layer.gradient_buffer, Role::gradient, true, false, begin, begin + padded_bytes(t, layer.gradient_dtype)}).front();
}

void FinishedGradients::hold(int tile) {
  if (tile == held_) return;
  settle();
  channel_->read(extent_of(tile), memory_.at(plan_.gradient_tile_buffer), 0);
  finish_transfer();
  held_ = tile;
}

void FinishedGradients::settle() {
  if (changed_) {
    channel_->write(extent_of(held_), memory_.at(plan_.gradient_tile_buffer), 0);
    finish_transfer();
  }
  held_ = -1;
  changed_ = false;
}

void FinishedGradients::finish_transfer() {
  while (channel_->in_flight() > 0) channel_->completions(true);
}

}  // namespace spillway
