#include "swap_layout.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "base/text.h"
#include "page_memory.h"
#include "spillway/error.h"
#include "swap_header.h"

namespace spillway {

namespace {

using PathSet = std::vector<int>;

class Placing {
 public:
  Placing(std::span<const SwapExtent> extents, std::span<const LayoutPath> paths, std::span<const LayoutDisk> disks)
      : extents_(extents), paths_(paths), disks_(disks), chosen_(extents.size(), -1), data_bytes_(paths.size()), table_bytes_(paths.size()), used_(disks.size()) {
    for (std::size_t p = 0; p < paths.size(); ++p) used_of(p) += file_bytes(p);
  }

  // Balances `members` over the paths of `set`.
  void place(const PathSet& set, const std::vector<std::size_t>& members) {
    std::vector<double> load(paths_.size(), 0.0);
    for (const std::size_t e : members) {
      int best = -1;
      double best_load = 0.0;
      for (const int p : set) {
        const auto path = static_cast<std::size_t>(p);
        const double then = load[path] + static_cast<double>(extents_[e].bytes) / paths_[path].bandwidth;
        if ((best < 0 || then < best_load) && has_room(path, e)) {
          best = p;
          best_load = then;
        }
      }
      if (best < 0) throw IoError(refusal(e, set));
      load[static_cast<std::size_t>(best)] = best_load;
      take(static_cast<std::size_t>(best), e);
    }
  }

  // In the order of the extents, so that what is moved together lies together.
  SwapLayout result() const {
    SwapLayout layout;
    std::vector<std::int64_t> end(paths_.size());
    for (std::size_t p = 0; p < paths_.size(); ++p) {
      end[p] = header_bytes(p);
      layout.file_bytes.push_back(file_bytes(p));
    }
    for (std::size_t e = 0; e < extents_.size(); ++e) {
      std::int64_t& at = end[static_cast<std::size_t>(chosen_[e])];
      layout.places.push_back({chosen_[e], at});
      at += extents_[e].bytes;
    }
    return layout;
  }

 private:
  std::int64_t header_bytes(std::size_t path) const { return whole_pages(paths_[path].header_base + table_bytes_[path]); }
  std::int64_t file_bytes(std::size_t path) const { return header_bytes(path) + data_bytes_[path]; }
  std::int64_t& used_of(std::size_t path) { return used_[static_cast<std::size_t>(paths_[path].disk)]; }
  std::int64_t free_of(std::size_t path) const {
    const auto disk = static_cast<std::size_t>(paths_[path].disk);
    return disks_[disk].free - used_[disk];
  }

  std::int64_t growth(std::size_t path, std::size_t e) const {
    const std::int64_t table = table_bytes_[path] + swap_table_row_bytes(extents_[e].name);
    return whole_pages(paths_[path].header_base + table) - header_bytes(path) + extents_[e].bytes;
  }

  // The last resort is one path: whether it is really full, allocation finds out and says.
  bool has_room(std::size_t path, std::size_t e) const { return paths_.size() == 1 || growth(path, e) <= free_of(path); }

  void take(std::size_t path, std::size_t e) {
    used_of(path) += growth(path, e);
    table_bytes_[path] += swap_table_row_bytes(extents_[e].name);
    data_bytes_[path] += extents_[e].bytes;
    chosen_[e] = static_cast<int>(path);
  }

  std::string refusal(std::size_t e, const PathSet& set) const {
    const auto all = [](std::int64_t sum, const SwapExtent& extent) { return sum + extent.bytes; };
    std::string text = fmt::format("[nvme] lay out {} in {} extents: no room for {} ({}); make room, add a path or lower "
                                   "spillway.nvme_memory\n  {:<40} {:>12} {:>12}",
                                   human_bytes(std::accumulate(extents_.begin(), extents_.end(), std::int64_t{0}, all)), extents_.size(),
                                   extents_[e].name, human_bytes(extents_[e].bytes), "path", "taken", "left");
    for (std::size_t p = 0; p < paths_.size(); ++p) {
      const bool allowed = std::ranges::find(set, static_cast<int>(p)) != set.end();
      text += fmt::format("\n  {:<40} {:>12} {:>12}{}", paths_[p].folder, human_bytes(file_bytes(p)), human_bytes(free_of(p)),
                          allowed ? "" : "  (not for this one)");
    }
    return text;
  }

  std::span<const SwapExtent> extents_;
  std::span<const LayoutPath> paths_;
  std::span<const LayoutDisk> disks_;
  std::vector<int> chosen_;
  std::vector<std::int64_t> data_bytes_, table_bytes_;  // of each path
  std::vector<std::int64_t> used_;                      // of each disk
};

}  // namespace

SwapLayout lay_out(std::span<const SwapExtent> extents, std::span<const LayoutPath> paths, std::span<const LayoutDisk> disks) {
  PathSet any(paths.size());
  std::iota(any.begin(), any.end(), 0);
  std::map<PathSet, std::vector<std::size_t>> members;
  for (std::size_t e = 0; e < extents.size(); ++e) {
    PathSet set = extents[e].paths.empty() ? any : extents[e].paths;
    std::ranges::sort(set);
    members[std::move(set)].push_back(e);
  }
  std::vector<const std::pair<const PathSet, std::vector<std::size_t>>*> order;
  for (const auto& entry : members) order.push_back(&entry);
  std::ranges::stable_sort(order, {}, [](const auto* entry) { return entry->first.size(); });

  Placing placing(extents, paths, disks);
  for (const auto* entry : order) placing.place(entry->first, entry->second);
  return placing.result();
}

}  // namespace spillway
