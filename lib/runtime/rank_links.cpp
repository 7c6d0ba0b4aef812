#include "runtime/rank_links.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"
#include "spillway/error.h"
#include "zero/partition.h"

namespace spillway {

namespace {

std::vector<std::uint64_t> of_all_ranks(Communicator& control, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(control.size()));
  control.exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

// A divergence would be a hang in the first collective: it is found before.
void compare_plans(Communicator& control, const Plan& plan) {
  const std::vector<std::uint64_t> hashes = of_all_ranks(control, plan.common_hash);
  std::vector<std::string> others;
  for (std::size_t r = 1; r < hashes.size(); ++r) {
    if (hashes[r] != hashes[0]) others.push_back(fmt::format("rank {} has {}", r, hex64(hashes[r])));
  }
  if (others.empty()) return;
  throw CommError(fmt::format("[comm] compare the plans of {} ranks: rank 0 has {}, but {}; the ranks were started with different configurations, "
                              "models or command lines: give all of them the same",
                              hashes.size(), hex64(hashes[0]), fmt::join(others, ", ")));
}

}  // namespace

RankLinks::RankLinks(World& world, World* device_world, const Plan& plan) : world_(world), control_(world.communicator()) {
  world.note_operation("comparing plans", "");
  compare_plans(*control_, plan);
  const PlanRequest& request = plan.request;
  const std::int64_t partition = plan.partition_size;
  const auto of = [&](RankGroup group) -> std::unique_ptr<Communicator>& { return groups_[static_cast<std::size_t>(group)]; };
  of(RankGroup::world) = (device_world == nullptr ? world : *device_world).communicator();
  of(RankGroup::partition) = of(RankGroup::world)->split(static_cast<int>(request.rank / partition));
  of(RankGroup::replicas) = of(RankGroup::world)->split(static_cast<int>(request.rank % partition));
}

std::int64_t RankLinks::sent_bytes() const {
  std::int64_t sum = 0;
  for (const auto& group : groups_) sum += group->sent_bytes();
  return sum;
}

std::uint64_t sum_over_ranks(Communicator& control, std::uint64_t mine) {
  std::uint64_t sum = 0;
  for (const std::uint64_t part : of_all_ranks(control, mine)) sum += part;
  return sum;
}

}  // namespace spillway
