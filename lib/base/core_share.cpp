#include "base/core_share.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

namespace spillway {

namespace {

using Cores = std::vector<int>;

// Ranks with a chain of overlapping masks between them.
struct Group {
  std::vector<std::size_t> ranks;
  std::set<int> cores;
};

std::vector<Group> overlapping(std::span<const Cores> masks) {
  std::vector<Group> groups;
  for (std::size_t rank = 0; rank < masks.size(); ++rank) {
    Group merged{{rank}, {masks[rank].begin(), masks[rank].end()}};
    std::erase_if(groups, [&](Group& group) {
      if (std::ranges::none_of(masks[rank], [&](int core) { return group.cores.contains(core); })) return false;
      merged.ranks.insert(merged.ranks.end(), group.ranks.begin(), group.ranks.end());
      merged.cores.merge(group.cores);
      return true;
    });
    std::ranges::sort(merged.ranks);
    groups.push_back(std::move(merged));
  }
  return groups;
}

// Part i of `cores` cut into n parts; a single core, shared with others, when there are fewer cores than parts.
Cores part(const Cores& cores, std::size_t i, std::size_t n) {
  const std::size_t begin = i * cores.size() / n;
  const std::size_t end = std::max(begin + 1, (i + 1) * cores.size() / n);
  return {cores.begin() + static_cast<std::ptrdiff_t>(begin), cores.begin() + static_cast<std::ptrdiff_t>(end)};
}

// How many of `ranks` each node gets, at least one each, so that the least cores per rank are the most they can be.
// Nothing if ranks had better be cut across nodes.
std::optional<std::vector<std::size_t>> ranks_per_node(const std::vector<Cores>& nodes, std::size_t ranks) {
  if (ranks < nodes.size()) return std::nullopt;
  std::vector<std::size_t> counts(nodes.size(), 1);
  const auto roomier = [&](std::size_t a, std::size_t b) {  // is a's share, one rank added, the larger?
    return nodes[a].size() * (counts[b] + 1) > nodes[b].size() * (counts[a] + 1);
  };
  for (std::size_t placed = nodes.size(); placed < ranks; ++placed) {
    std::size_t best = 0;
    for (std::size_t n = 1; n < nodes.size(); ++n) {
      if (roomier(n, best)) best = n;
    }
    ++counts[best];
  }
  std::size_t cores = 0, least = nodes.front().size();
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    cores += nodes[n].size();
    least = std::min(least, std::max<std::size_t>(1, nodes[n].size() / counts[n]));
  }
  if (2 * least * ranks < cores) return std::nullopt;
  return counts;
}

class Division {
 public:
  Division(std::span<const Cores> masks, std::span<const int> node_of_core)
      : node_of_core_(node_of_core), cores_(masks.size()), groups_(overlapping(masks)) {
    for (const Group& group : groups_) divide(group);
  }

  const Cores& cores(std::size_t rank) const { return cores_[rank]; }
  std::string sentence() const;

 private:
  int node(int core) const {
    return static_cast<std::size_t>(core) < node_of_core_.size() ? node_of_core_[static_cast<std::size_t>(core)] : 0;
  }

  void divide(const Group& group) {
    std::map<int, Cores> by_node;
    for (const int core : group.cores) by_node[node(core)].push_back(core);
    std::vector<Cores> nodes;
    for (auto& [number, cores] : by_node) nodes.push_back(std::move(cores));
    const auto counts = ranks_per_node(nodes, group.ranks.size());
    if (!counts) {
      Cores all;
      for (const Cores& cores : nodes) all.insert(all.end(), cores.begin(), cores.end());
      return give(all, group.ranks);
    }
    std::span<const std::size_t> ranks = group.ranks;
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      give(nodes[n], ranks.first((*counts)[n]));
      ranks = ranks.subspan((*counts)[n]);
    }
  }

  void give(const Cores& cores, std::span<const std::size_t> ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      Cores& share = cores_[ranks[i]];
      share = part(cores, i, ranks.size());
      std::ranges::sort(share);  // a share of several nodes may not be in order
    }
  }

  std::set<int> nodes_of(const Cores& cores) const {
    std::set<int> nodes;
    for (const int core : cores) nodes.insert(node(core));
    return nodes;
  }

  std::string numbers_each() const;
  std::string spanning(std::size_t nodes) const;
  std::string who_is_where() const;

  std::span<const int> node_of_core_;
  std::vector<Cores> cores_;  // by rank
  std::vector<Group> groups_;
};

std::string counted(std::size_t n, std::string_view noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

// "8 cores each", "2 to 3 cores each".
std::string Division::numbers_each() const {
  const auto [least, most] = std::ranges::minmax(cores_, {}, &Cores::size);
  if (least.size() == most.size()) return counted(least.size(), "core") + " each";
  return fmt::format("{} to {} cores each", least.size(), most.size());
}

std::string Division::spanning(std::size_t nodes) const {
  if (nodes == 1) return {};
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < cores_.size(); ++rank) {
    if (nodes_of(cores_[rank]).size() > 1) ranks.push_back(rank);
  }
  if (ranks.empty()) return ", no rank spans nodes";
  const bool one = ranks.size() == 1;
  return fmt::format(", rank{} {} span{} nodes", one ? "" : "s", fmt::join(ranks, ", "), one ? "s" : "");
}

// "ranks 0, 1 on core 0, rank 2 on cores 1-3"
std::string Division::who_is_where() const {
  std::map<Cores, std::vector<std::size_t>> ranks_on;
  for (std::size_t rank = 0; rank < cores_.size(); ++rank) ranks_on[cores_[rank]].push_back(rank);
  std::vector<std::string> places;
  for (const auto& [cores, ranks] : ranks_on) {
    places.push_back(fmt::format("rank{} {} on core{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                                 cores.size() == 1 ? "" : "s", core_list(cores)));
  }
  return fmt::format("{}", fmt::join(places, ", "));
}

std::string Division::sentence() const {
  std::set<int> all;
  std::size_t given = 0;
  for (const Cores& cores : cores_) {
    all.insert(cores.begin(), cores.end());
    given += cores.size();
  }
  const std::size_t nodes = nodes_of({all.begin(), all.end()}).size();
  const std::string ranks = counted(cores_.size(), "rank");
  const std::string where = counted(all.size(), "core") + (nodes > 1 ? fmt::format(" on {} NUMA nodes", nodes) : "");
  if (cores_.size() == 1) return fmt::format("1 rank uses {}", where);
  if (given > all.size()) return fmt::format("{} share {}: {}", ranks, where, who_is_where());
  if (groups_.size() == cores_.size()) {
    return fmt::format("{} keep the {} that the launcher bound them to: {}{}", ranks, where, numbers_each(),
                       spanning(nodes));
  }
  return fmt::format("{} divide {}: {}{}", ranks, where, numbers_each(), spanning(nodes));
}

std::optional<int> read_core(std::string_view& text) {
  int core = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), core);
  if (error != std::errc() || core < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return core;
}

}  // namespace

std::string core_list(std::span<const int> cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    const int first = cores[i];
    int last = first;
    while (++i < cores.size() && cores[i] == last + 1) ++last;
    if (!text.empty()) text += ',';
    text += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
  }
  return text;
}

std::vector<int> parse_core_list(std::string_view text) {
  constexpr int most = 1 << 20;  // far above any machine; bounds what a damaged text can ask for
  std::set<int> cores;
  while (!text.empty()) {
    const std::optional<int> first = read_core(text);
    std::optional<int> last = first;
    if (first && text.starts_with('-')) {
      text.remove_prefix(1);
      last = read_core(text);
    }
    if (first && last && *last < most) {
      for (int core = *first; core <= *last; ++core) cores.insert(core);
    }
    text.remove_prefix(std::min(text.size(), text.find(',') == text.npos ? text.size() : text.find(',') + 1));
  }
  return {cores.begin(), cores.end()};
}

CoreShare share_cores(std::span<const std::vector<int>> masks, std::span<const int> node_of_core, int local_rank) {
  const auto rank = static_cast<std::size_t>(local_rank);
  const auto unknown = std::ranges::find_if(masks, &Cores::empty);
  if (unknown != masks.end()) {
    return {masks[rank], fmt::format("the affinity mask of rank {} cannot be read, so cores stay as they are",
                                     unknown - masks.begin())};
  }
  const Division division(masks, node_of_core);
  return {division.cores(rank), division.sentence()};
}

}  // namespace spillway
