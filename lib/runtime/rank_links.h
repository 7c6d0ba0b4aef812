// The communicators of an engine: one per group of ranks that its plan's collectives join, and one for control.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "spillway/communicator.h"
#include "spillway/plan.h"

namespace spillway {

class RankLinks {
 public:
  // Collective. Borrows the worlds; `device_world` moves the buffers of collectives, or `world` itself if that is nullptr.
  // Throws CommError that names the ranks whose plan is another than rank 0's.
  RankLinks(World& world, World* device_world, const Plan& plan);

  World& world() { return world_; }
  Communicator& of(RankGroup group) { return *groups_[static_cast<std::size_t>(group)]; }

  // Of all ranks, for the gate and for what happens between steps. One thread at a time, as everything here.
  Communicator& control() { return *control_; }

  // Payload this rank has sent in collectives of buffers.
  std::int64_t sent_bytes() const;

 private:
  World& world_;
  std::unique_ptr<Communicator> control_;
  std::array<std::unique_ptr<Communicator>, kRankGroups> groups_;
};

// Adds up what every rank has, in the order of ranks.
std::uint64_t sum_over_ranks(Communicator& control, std::uint64_t mine);

}  // namespace spillway
