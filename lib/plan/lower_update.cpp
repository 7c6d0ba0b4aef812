// The optimizer: each tile's state is read, updated and written back while its neighbours' are on their
// way in and out; new 16-bit weights go where the weights live.
#include <algorithm>
#include <deque>
#include <numeric>

#include <fmt/format.h>

#include "plan/lower.h"
#include "plan/ranks.h"

namespace spillway {

// Forward order, since the next step wants its first layers first. But layers whose weights have to cross the link come
// before all others: the link's lane works in order, and the next step's first gather must not stand behind them.
std::vector<int> update_order(const Plan& plan) {
  std::vector<int> order(plan.layers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_partition(order.begin(), order.end(), [&](int l) {
    const LayerPlan& layer = plan.layers[static_cast<std::size_t>(l)];
    return layer.weights_tier == Tier::device && !layer.update_on_device;
  });
  return order;
}

namespace {

// What of the tiles is on NVMe, and where it comes to on the host.
struct Ring {
  explicit Ring(std::size_t all_tiles) : places(all_tiles, -1) {}

  std::vector<int> places;      // per tile that has been asked for: buffer
  std::vector<int> tiles;       // that are on NVMe, as they are updated
  std::size_t next = 0;         // to be asked for, into `tiles`
};

class UpdateLowering {
 public:
  UpdateLowering(Plan& plan, Timeline& timeline)
      : plan_(plan), timeline_(timeline), order_(update_order(plan)), states_(plan.tiles.size()), gradients_(plan.tiles.size()) {
    for (const int l : order_) {
      const LayerPlan& layer = plan.layers[static_cast<std::size_t>(l)];
      for (int t = layer.first_tile; t < layer.first_tile + layer.num_tiles; ++t) {
        if (plan.tiles[static_cast<std::size_t>(t)].tier == Tier::nvme) states_.tiles.push_back(t);
        if (layer.gradient_tier == Tier::nvme) gradients_.tiles.push_back(t);
      }
    }
  }

  void run();

 private:
  std::int64_t end() const { return static_cast<std::int64_t>(timeline_.positions()); }
  void emit(Task task) { timeline_.before(end(), std::move(task)); }
  Task read_into(Ring& ring, int t, TaskKind kind, const Access& home, std::string_view what);
  void read_state(std::int64_t position);
  void read_gradient();
  void update(int t);
  void send_weights(int t, int from);
  void retire(std::size_t keep);
  void share_weights(const LayerPlan& layer, int l);

  Plan& plan_;
  Timeline& timeline_;
  std::vector<int> order_;      // layers, as they are updated
  Ring states_;
  Ring gradients_;
  std::deque<std::vector<Task>> outgoing_;  // per updated tile: its transfers, issued one tile later
};

// The read of a tile from its home on NVMe into a fresh place of the ring.
Task UpdateLowering::read_into(Ring& ring, int t, TaskKind kind, const Access& home, std::string_view what) {
  const TilePlan& tile = plan_.tiles[static_cast<std::size_t>(t)];
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(tile.layer)];
  const std::int64_t bytes = home.end - home.begin;
  const int place = add_transient(plan_, fmt::format("{} of tile {} of {}, in the ring", what, t - layer.first_tile, layer.name),
                                  Tier::host, Owner::staging, bytes);
  ring.places[static_cast<std::size_t>(t)] = place;
  Task task = make_task(kind, Lane::nvme_read, tile.layer, -1, bytes, {home, write_of(plan_, place, Role::destination)});
  task.tile = t;
  return task;
}

void UpdateLowering::read_state(std::int64_t position) {
  if (states_.next == states_.tiles.size()) return;
  const int t = states_.tiles[states_.next++];
  const int home = plan_.tiles[static_cast<std::size_t>(t)].state_buffer;
  timeline_.before(position, read_into(states_, t, TaskKind::read_tile, read_of(plan_, home, Role::source), "state"));
}

// Behind the gate, which may still change it.
void UpdateLowering::read_gradient() {
  if (gradients_.next == gradients_.tiles.size()) return;
  const int t = gradients_.tiles[gradients_.next++];
  emit(read_into(gradients_, t, TaskKind::read_gradient, gradient_at_home(plan_, t, Role::source), "gradient"));
}

// New weights from `from`, where the update left them, to where the layer's weights live.
void UpdateLowering::send_weights(int t, int from) {
  const TilePlan& tile = plan_.tiles[static_cast<std::size_t>(t)];
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(tile.layer)];
  const std::int64_t width = size_of(plan_.request.dtype);
  const std::int64_t bytes = tile.num_elements() * width;
  const std::int64_t at = layer.weights_offset(tile.begin, width);
  const Access home = part(write_of(plan_, layer.weights_buffer, Role::destination), at, at + bytes);
  const Access verdict = read_of(plan_, plan_.verdict_buffer, Role::verdict);
  const auto send = [&](TaskKind kind, Lane lane, std::int64_t moved, Access source, Access destination) {
    Task task = make_task(kind, lane, tile.layer, -1, moved, {source, destination, verdict});
    task.tile = t;
    outgoing_.back().push_back(std::move(task));
  };
  const Access source = part(read_of(plan_, from, Role::source), 0, bytes);
  if (layer.weights_tier == Tier::device) return send(TaskKind::publish, Lane::h2d, bytes, source, home);
  if (layer.weights_tier == Tier::host) return send(TaskKind::publish, Lane::d2h, bytes, source, home);
  int staged = from;
  const std::int64_t padded = padded_bytes(tile, plan_.request.dtype);
  if (layer.update_on_device) {
    staged = add_transient(plan_, fmt::format("new weights of tile {}, on the host", t), Tier::host, Owner::staging, padded);
    // All of the page-padded buffer counts as written: the padding's bytes are never looked at.
    send(TaskKind::publish, Lane::d2h, bytes, source, write_of(plan_, staged, Role::destination));
  }
  send(TaskKind::write_weights, Lane::nvme_write, padded, read_of(plan_, staged, Role::source),
       part(home, at, at + padded));
}

void UpdateLowering::update(int t) {
  const TilePlan& tile = plan_.tiles[static_cast<std::size_t>(t)];
  const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(tile.layer)];
  const std::int64_t width = size_of(plan_.request.dtype);
  const std::int64_t gradient_width = size_of(layer.gradient_dtype);
  const Tier here = layer.update_on_device ? Tier::device : Tier::host;
  const auto index = static_cast<std::size_t>(t);
  const int state = tile.tier == Tier::nvme ? states_.places[index] : tile.state_buffer;
  const bool here_already = layer.gradient_tier != Tier::nvme;
  const int gradient = here_already ? layer.gradient_buffer : gradients_.places[index];
  const std::int64_t gradient_begin = here_already ? (tile.begin - layer.owned.begin) * gradient_width : 0;
  Task task = make_task(TaskKind::update_tile, layer.update_on_device ? Lane::compute : Lane::cpu, tile.layer, -1,
                        state_traffic(tile.layout.format, tile.num_elements()) + tile.num_elements() * (gradient_width + width),
                        {update_of(plan_, state, Role::state),
                         part(read_of(plan_, gradient, Role::gradient), gradient_begin, gradient_begin + tile.num_elements() * gradient_width),
                         read_of(plan_, plan_.verdict_buffer, Role::verdict)});
  task.tile = t;
  outgoing_.emplace_back();
  if (layer.weights_tier == here) {
    const std::int64_t at = layer.weights_offset(tile.begin, width);
    task.accesses.push_back(part(write_of(plan_, layer.weights_buffer, Role::new_weights), at, at + tile.num_elements() * width));
  } else {
    const int fresh = add_transient(plan_, fmt::format("new weights of tile {}", t), here, Owner::staging,
                                    padded_bytes(tile, plan_.request.dtype));
    task.accesses.push_back(write_of(plan_, fresh, Role::new_weights));
    send_weights(t, fresh);
  }
  emit(std::move(task));
  if (tile.tier == Tier::nvme) {
    Task write = make_task(TaskKind::write_tile, Lane::nvme_write, tile.layer, -1, tile.state_bytes(),
                           {read_of(plan_, state, Role::source), write_of(plan_, tile.state_buffer, Role::destination),
                            read_of(plan_, plan_.verdict_buffer, Role::verdict)});
    write.tile = t;
    outgoing_.back().push_back(std::move(write));
  }
}

// A tile's transfers are put behind the next tile's update, so that its memory is not handed on
// before they have had that long to finish.
void UpdateLowering::retire(std::size_t keep) {
  while (outgoing_.size() > keep) {
    for (Task& task : outgoing_.front()) emit(std::move(task));
    outgoing_.pop_front();
  }
}

// Where every rank keeps a whole layer but updates only its shard, they exchange their new weights.
void UpdateLowering::share_weights(const LayerPlan& layer, int l) {
  retire(0);
  for (Task& task : all_gather_shards(plan_, TaskKind::all_gather_updated, l, layer.weights_buffer, Role::destination, 0, layer.num_trainable,
                                      size_of(plan_.request.dtype), true)) {
    emit(std::move(task));
  }
}

void UpdateLowering::run() {
  for (int i = 0; i < plan_.request.prefetch_depth; ++i) {
    read_state(end() - 1);
    read_gradient();
  }
  const bool shards = partition_of(plan_.request).partition > 1;
  for (const int l : order_) {
    const LayerPlan& layer = plan_.layers[static_cast<std::size_t>(l)];
    for (int t = layer.first_tile; t < layer.first_tile + layer.num_tiles; ++t) {
      if (plan_.tiles[static_cast<std::size_t>(t)].tier == Tier::nvme) read_state(end());
      if (layer.gradient_tier == Tier::nvme) read_gradient();
      update(t);
      retire(1);
    }
    if (shards && layer.resident) share_weights(layer, l);
  }
  retire(0);
}

}  // namespace

void lower_update(Plan& plan, Timeline& timeline) {
  UpdateLowering(plan, timeline).run();
}

}  // namespace spillway
