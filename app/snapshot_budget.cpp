#include "app/snapshot_budget.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "app/setup.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/sequential_file.h"
#include "spillway/error.h"

namespace spillway::app {

namespace {

// Of the rate of an idle disk, what a save is counted on to get: the step reads and writes there too, state on NVMe is
// read before it is saved, and hashing shares the step's cores.
constexpr double kCountedOn = 0.5;
constexpr std::int64_t kMeasuredBytes = 64 << 20;

struct State {
  std::int64_t bytes = 0;
  std::int64_t largest = 0;  // what is copied at a time
};

// What this rank saves.
State state_of(const Plan& plan) {
  State state;
  for (const SnapshotPlan& snapshot : plan.snapshots) {
    std::int64_t bytes = 0;
    if (snapshot.tile >= 0) {
      bytes = plan.tiles[static_cast<std::size_t>(snapshot.tile)].state_bytes();
    } else {
      bytes = plan.weights_chunks[static_cast<std::size_t>(snapshot.chunk)].num_elements() * size_of(plan.request.dtype);
    }
    state.bytes += bytes;
    state.largest = std::max(state.largest, bytes);
  }
  return state;
}

// As a save writes: bytes per second until they are on disk. Throws IoError, on a disk that is nearly full, say.
double measured_write_rate(const std::string& folder) {
  checkpoint::WriteBuffer buffer;
  checkpoint::SequentialFile file = checkpoint::SequentialFile::unnamed(folder, kMeasuredBytes, buffer.span());
  const std::vector<std::byte> bytes(1 << 20, std::byte{0x5a});
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t written = 0; written < kMeasuredBytes; written += static_cast<std::int64_t>(bytes.size())) file.append(bytes);
  file.finish();
  return static_cast<double>(kMeasuredBytes) / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Plan with_snapshot_memory(Plan plan, Setup& setup, const std::string& out, int ranks_on_machine) {
  const State state = state_of(plan);
  if (plan.snapshot_buffer < 0) return plan;  // nothing is saved here
  const std::int64_t there = plan.buffers[static_cast<std::size_t>(plan.snapshot_buffer)].bytes;
  if (there >= state.bytes) return plan;
  // What is measured must not take the room that a checkpoint will need: file systems give it back late.
  if (std::filesystem::space(out).available < static_cast<std::uintmax_t>(8 * kMeasuredBytes)) return plan;
  double rate = 0.0;
  try {
    rate = measured_write_rate(out);
  } catch (const IoError& error) {
    log_warning(fmt::format("{}; saves get {} of host memory, and a step in which one begins may last as long as the save", error.what(), human_bytes(there)));
    return plan;
  }
  const double step_s = simulate(plan.step, task_seconds(plan, plan.step, setup.rates), setup.rates).step_s;
  const auto drained = static_cast<std::int64_t>(std::min(static_cast<double>(state.bytes), 2.0 * step_s * kCountedOn * rate));
  const auto places_for = [&](std::int64_t bytes) { return bytes / state.largest * state.largest; };
  const std::int64_t wanted = places_for(state.bytes - drained + state.largest - 1);
  const std::int64_t allowed = places_for(there + std::max<std::int64_t>(0, host_memory_left(plan, *setup.device, ranks_on_machine)));
  const std::int64_t bytes = std::max(there, std::min(wanted, allowed));
  log_info(fmt::format("[checkpoint] {} of host memory to copy {} of state to: in two steps of {:.0f} ms the disk under '{}' is counted on for {} "
                       "(half of its {}/s){}",
                       human_bytes(bytes), human_bytes(state.bytes), step_s * 1e3, out, human_bytes(drained),
                       human_bytes(static_cast<std::int64_t>(rate)),
                       wanted > bytes ? "; more does not fit: a step in which a save begins may last longer than two" : ""));
  if (bytes == there) return plan;
  setup.request.snapshot_bytes = bytes;
  return plan_for_machine(setup, ranks_on_machine);
}

}  // namespace spillway::app
