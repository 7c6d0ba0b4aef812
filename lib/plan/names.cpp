// What the parts of a plan are called in logs, traces and tables.
#include "spillway/plan.h"

namespace spillway {

std::string_view name_of(Tier tier) {
  constexpr std::array<std::string_view, kTiers> names = {"device", "host", "nvme"};
  return names[static_cast<std::size_t>(tier)];
}

std::string_view name_of(Lane lane) {
  constexpr std::array<std::string_view, kLanes> names = {"compute", "h2d", "d2h", "comm", "cpu", "snapshot", "nvme_fetch", "nvme_read", "nvme_write"};
  return names[static_cast<std::size_t>(lane)];
}

std::string_view name_of(Owner owner) {
  constexpr std::array<std::string_view, kOwners> names = {
      "weights", "optimizer state", "gradients", "activations", "workspace", "staging", "batch", "statistics", "communication"};
  return names[static_cast<std::size_t>(owner)];
}

std::string_view name_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::read_weights: return "read weights";
    case TaskKind::gather: return "gather";
    case TaskKind::all_gather: return "all-gather";
    case TaskKind::forward: return "forward";
    case TaskKind::backward: return "backward";
    case TaskKind::save_activation: return "save activation";
    case TaskKind::write_activation: return "write activation";
    case TaskKind::read_activation: return "read activation";
    case TaskKind::load_activation: return "load activation";
    case TaskKind::drain_partial: return "drain partial gradient";
    case TaskKind::accumulate: return "accumulate";
    case TaskKind::pack_gradient: return "pack gradient";
    case TaskKind::reduce_scatter: return "reduce-scatter";
    case TaskKind::sum_gradient: return "sum gradient";
    case TaskKind::finalize: return "finalize gradient";
    case TaskKind::gather_gradient: return "gather gradient";
    case TaskKind::drain_gradient: return "drain gradient";
    case TaskKind::write_gradient: return "write gradient";
    case TaskKind::read_gradient: return "read gradient";
    case TaskKind::drain_statistics: return "drain statistics";
    case TaskKind::exchange_statistics: return "exchange statistics";
    case TaskKind::gate: return "gate";
    case TaskKind::read_tile: return "read tile";
    case TaskKind::update_tile: return "update tile";
    case TaskKind::write_tile: return "write tile";
    case TaskKind::publish: return "publish weights";
    case TaskKind::write_weights: return "write weights";
    case TaskKind::all_gather_updated: return "all-gather updated";
    case TaskKind::snapshot: return "snapshot";
  }
  return "?";
}

}  // namespace spillway
