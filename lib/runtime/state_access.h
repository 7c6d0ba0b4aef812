// Reading and writing training state between steps, wherever it lives. Only while nothing runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/plan_memory.h"
#include "spillway/device.h"
#include "spillway/model.h"
#include "spillway/swap_store.h"

namespace spillway {

// A tile's state in host memory: three sections of num_elements() f32.
struct TileState {
  std::span<float> master;
  std::span<float> exp_avg;
  std::span<float> exp_avg_sq;
};

class StateAccess {
 public:
  // Borrows everything; `store` may be nullptr if nothing is on NVMe.
  StateAccess(const Plan& plan, PlanMemory& memory, Device& device, SwapStore* store);

  // The state of a tile, valid until the next call. One tile is held at a time, in the plan's
  // maintenance buffer, or in place if it lives on the host.
  TileState load(int tile);

  // Stores the state last returned by load() or fresh() for `tile`.
  void store(int tile);

  // Memory for a tile's new state, without reading the old one.
  TileState fresh(int tile);

  // Writes the 16-bit (or f32) weights of the tile whose state is held, rounded from its master.
  void store_weights(int tile);

  // Forgets the held tile: something else may have changed it, or used the buffer.
  void forget() { held_ = -1; }

 private:
  std::byte* state_address(int tile) const;
  TileState view(int tile) const;
  void copy(void* to, const void* from, std::int64_t bytes);
  void wait_for_transfer();

  const Plan& plan_;
  PlanMemory& memory_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<SwapChannel> channel_;
  int held_ = -1;
};

// Fills every tile with the seed's initial values and zero moments, and every weight from its master.
void initialise_state(const Plan& plan, const std::vector<std::unique_ptr<Layer>>& layers, std::uint64_t seed, StateAccess& state);

// Hash of the fp32 master weights and both moments of all parameters in name order, and of the number of
// applied steps. Depends on nothing else: not on placement, tiles, dtype of weights, or threads.
std::uint64_t hash_state(const Plan& plan, const std::vector<std::unique_ptr<Layer>>& layers, std::int64_t applied_steps,
                         StateAccess& state);

}  // namespace spillway
