// Makes a swap store: checks what is asked for, lays extents out over the paths, starts the rings.
#include "spillway/swap_store.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "errno_text.h"
#include "page_memory.h"
#include "path_rates.h"
#include "spillway/error.h"
#include "swap_channel.h"
#include "swap_failure.h"
#include "swap_header.h"
#include "swap_layout.h"
#include "swap_state.h"

namespace spillway {

namespace {

std::string folders_of(const SwapStoreOptions& options) {
  std::string text;
  for (const SwapPath& path : options.paths) text += (text.empty() ? "" : ", ") + path.folder;
  return text;
}

// A wrong table would overwrite one extent with another without a word, so it is checked in every build.
void check(const SwapStoreOptions& options) {
  const auto refuse = [&](const std::string& why) {
    throw IoError(fmt::format("[nvme] make swap store ({}): {}", folders_of(options), why));
  };
  const auto aligned = [](std::int64_t value) { return value > 0 && value % SwapStore::alignment == 0; };
  if (options.paths.empty()) refuse("it has no path; set nvme_path to a folder");
  if (!aligned(options.block_bytes) || options.block_bytes > IoEngine::max_transfer_bytes) {
    refuse(fmt::format("block size {} is not a multiple of {} up to {}", options.block_bytes, SwapStore::alignment,
                       IoEngine::max_transfer_bytes));
  }
  if (options.engine.depth < 0) refuse(fmt::format("depth {} is negative; 0 has it measured", options.engine.depth));
  if (options.rings < 1) refuse(fmt::format("{} rings per path; at least 1 is needed", options.rings));
  for (const SwapPath& path : options.paths) {
    if (!(path.bandwidth >= 0.0)) refuse(fmt::format("bandwidth {} of {} is negative", path.bandwidth, path.folder));
  }
  for (const SwapExtent& extent : options.extents) {
    if (!aligned(extent.bytes)) {
      refuse(fmt::format("{} of {} bytes is empty or not a multiple of {}", extent.name, extent.bytes, SwapStore::alignment));
    }
    for (const int path : extent.paths) {
      if (path >= 0 && path < static_cast<int>(options.paths.size())) continue;
      refuse(fmt::format("{} may lie on path {} of {}", extent.name, path, options.paths.size()));
    }
  }
}

class FileSwapStore final : public SwapStore {
 public:
  explicit FileSwapStore(SwapStoreOptions options) {
    state_.verify = options.verify;
    state_.records.resize(options.extents.size());
    make_files(options);
    state_.extents = std::move(options.extents);
    start_rings(options);
  }

  std::unique_ptr<SwapChannel> open_channel(IoPriority priority) override { return std::make_unique<StoreChannel>(state_, priority); }

  SwapCounters counters() const override {
    return {state_.read_bytes.load(std::memory_order_relaxed), state_.write_bytes.load(std::memory_order_relaxed),
            state_.checksum_failures.load(std::memory_order_relaxed)};
  }

  std::vector<SwapPathHealth> health() const override {
    std::vector<SwapPathHealth> all;
    for (const auto& path : state_.paths) all.push_back(path->health());
    return all;
  }

  std::string_view engine_name() const override { return state_.paths.front()->engine_name(); }
  bool buffered() const override {
    return std::ranges::any_of(state_.paths, [](const auto& path) { return path->file().buffered(); });
  }
  int path_of(int extent) const override { return state_.places.at(static_cast<std::size_t>(extent)).path; }

  void corrupt_for_test(int extent, std::int64_t byte, int bit) override {
    const SwapExtent& range = state_.extents.at(static_cast<std::size_t>(extent));
    if (byte < 0 || byte >= range.bytes) {
      throw IoError(fmt::format("[nvme] corrupt {}: it has no byte {}", range.name, byte));
    }
    const SwapFile& file = state_.path_of(extent).file();
    const PageMemory page(alignment);
    const std::int64_t offset = state_.places[static_cast<std::size_t>(extent)].offset + byte / alignment * alignment;
    if (const int error = file.read(page.span(), offset); error != 0) {
      throw IoError(fmt::format("[nvme] read a page of {} to corrupt it ({}): {}", range.name, file.folder(), errno_text(error)));
    }
    page.span()[static_cast<std::size_t>(byte % alignment)] ^= std::byte{1} << bit;
    file.write(page.span(), offset);
  }

 private:
  void make_files(const SwapStoreOptions& options) {
    const SwapIdentity identity = next_swap_identity(options.contents, static_cast<int>(options.paths.size()));
    std::vector<SwapFile> files;
    for (const SwapPath& path : options.paths) files.emplace_back(path.folder);
    rates_ = path_rates(options, files);
    std::vector<LayoutPath> paths;
    std::vector<LayoutDisk> disks;
    for (std::size_t p = 0; p < files.size(); ++p) {
      const auto first = static_cast<std::size_t>(std::ranges::find(files, files[p].device(), &SwapFile::device) - files.begin());
      if (first == p) disks.push_back({files[p].free_bytes_now()});
      const int disk = first == p ? static_cast<int>(disks.size()) - 1 : paths[first].disk;
      paths.push_back({files[p].folder(), rates_[p].bandwidth, disk, swap_header_base(identity)});
    }
    const SwapLayout layout = lay_out(options.extents, paths, disks);
    state_.places = layout.places;
    for (std::size_t p = 0; p < files.size(); ++p) {
      SwapIdentity own = identity;
      own.path_index = static_cast<std::int64_t>(p);
      state_.paths.push_back(std::make_unique<PathWorker>(std::move(files[p]), own, table_of(options, layout, p), layout.file_bytes[p]));
    }
  }

  static std::vector<PlacedExtent> table_of(const SwapStoreOptions& options, const SwapLayout& layout, std::size_t path) {
    std::vector<PlacedExtent> table;
    for (std::size_t e = 0; e < options.extents.size(); ++e) {
      if (layout.places[e].path != static_cast<int>(path)) continue;
      table.push_back({options.extents[e].name, layout.places[e].offset, options.extents[e].bytes});
    }
    return table;
  }

  // The first ring settles which engine all use.
  void start_rings(SwapStoreOptions& options) {
    PathRingOptions ring;
    ring.engine = std::move(options.engine);
    ring.make_engine = options.make_engine ? std::move(options.make_engine) : make_io_engine;
    ring.describe = [this](const RingTransfer& transfer) { return transfer_failure(state_, transfer); };
    ring.block_bytes = options.block_bytes;
    ring.single_submit = options.single_submit;
    ring.overlap_events = options.overlap_events;
    for (std::size_t p = 0; p < state_.paths.size(); ++p) {
      ring.engine.depth = rates_[p].depth;
      state_.paths[p]->start(ring, options.rings, state_.failure);
      if (ring.engine.name == "auto") ring.engine.name = state_.paths[p]->engine_name();
    }
  }

  std::vector<PathRate> rates_;
  SwapState state_;
};

}  // namespace

std::unique_ptr<SwapStore> make_swap_store(SwapStoreOptions options) {
  check(options);
  return std::make_unique<FileSwapStore>(std::move(options));
}

}  // namespace spillway
