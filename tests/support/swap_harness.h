// Short ways to make a swap store and move whole extents, for its tests.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "support/aligned_buffer.h"
#include "support/faulty_engine.h"
#include "support/io_error.h"
#include "spillway/swap_store.h"

namespace spillway::testing {

// Of the header of few extents.
inline constexpr std::int64_t kHeader = SwapStore::alignment;

// One path, and extents of these sizes, named as the plan names them. On one path they lie one after the other, after a
// header of kHeader bytes.
inline SwapStoreOptions store_options(const std::string& folder, const std::vector<std::int64_t>& sizes) {
  SwapStoreOptions options;
  options.paths = {{folder}};
  for (std::size_t i = 0; i < sizes.size(); ++i) options.extents.push_back({"tile " + std::to_string(i) + " of block 3", sizes[i]});
  return options;
}

inline SwapStoreOptions with_faults(SwapStoreOptions options, const FaultSchedule& schedule) {
  options.make_engine = [schedule](const IoEngineOptions& engine) {
    return std::make_unique<FaultyEngine>(make_io_engine(engine), schedule);
  };
  return options;
}

// Tags of the transfers finished until none is in flight.
inline std::vector<std::uint64_t> drain(SwapChannel& channel) {
  std::vector<std::uint64_t> tags;
  while (channel.in_flight() > 0) {
    for (const SwapCompletion& completion : channel.completions(true)) tags.push_back(completion.tag);
  }
  return tags;
}

// A store's file as others see it: the descriptor whose link points into `folder`.
inline std::string descriptor_of(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with(folder + "/")) return entry.path();
  }
  return "";
}

inline void write_now(SwapChannel& channel, int extent, const AlignedBuffer& data) {
  channel.write(extent, data.data(), 1);
  drain(channel);
}

inline void read_now(SwapChannel& channel, int extent, AlignedBuffer& data) {
  channel.read(extent, data.data(), 1);
  drain(channel);
}

}  // namespace spillway::testing
