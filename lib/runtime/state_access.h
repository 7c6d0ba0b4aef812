// Reading and writing training state between steps, wherever it lives. Only while nothing runs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan_memory.h"
#include "runtime/state_io.h"
#include "spillway/device.h"
#include "spillway/model.h"
#include "spillway/swap_store.h"

namespace spillway {

// A tile's state in host memory, num_elements() f32 each; moments that its optimizer does not have are empty.
struct TileState {
  std::span<float> master;
  std::array<std::span<float>, kMaxMoments> moments;
};

class StateAccess {
 public:
  // Borrows everything; `store` may be nullptr if nothing is on NVMe.
  StateAccess(const Plan& plan, PlanMemory& memory, Device& device, SwapStore* store);

  // The state of a tile, valid until the next call. One tile is held at a time, in the plan's
  // maintenance buffer, or in place if it lives on the host; moments that are not kept as f32 are decoded into that
  // buffer.
  TileState load(int tile);

  // Stores the state last returned by load() or fresh() for `tile`; moments are rounded to the nearest of their format,
  // which leaves those as they are that load() has returned.
  void store(int tile);

  // Memory for a tile's new state, without reading the old one.
  TileState fresh(int tile);

  // Writes the weights of the tile whose state is held, rounded from its master.
  void store_weights(int tile);

  // Memory for the f32 values of a chunk of weights, valid until the next call of anything here.
  std::span<float> chunk_values(int chunk);

  // Writes a chunk's weights, rounded from chunk_values().
  void store_chunk(int chunk);

  // The weights of a chunk as they are, in the dtype of the model; valid like chunk_values().
  std::span<const std::byte> load_chunk(int chunk);

  // Forgets the held tile: something else may have changed it, or used the buffer.
  void forget() { held_ = -1; }

 private:
  std::byte* state_address(int tile) const;
  TileState view(int tile) const;
  // Calls convert(law, values and scales as kept, values as f32) for every moment that is not kept as f32.
  template <class Convert>
  void convert_moments(int tile, Convert convert) const;
  void decode(int tile) const;
  void encode(int tile) const;
  void copy(void* to, const void* from, std::int64_t bytes);
  void wait_for_transfer();
  std::byte* rounded_weights() const;
  void round_and_store(int chunk, std::span<const float> values);

  const Plan& plan_;
  PlanMemory& memory_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<SwapChannel> channel_;
  int held_ = -1;
};

// Fills every tile and every weight from the source.
void initialise_state(const Plan& plan, const std::vector<std::unique_ptr<Layer>>& layers, StateSource& source, StateAccess& state);

// The state that a run starts from: initial values by seed, zero moments.
class SeedSource final : public StateSource {
 public:
  // Borrows the layers.
  SeedSource(const std::vector<std::unique_ptr<Layer>>& layers, std::uint64_t seed);
  void read(const std::string& param, StateSection section, std::int64_t begin, std::span<float> out) override;

 private:
  std::map<std::string, const ParamSpec*, std::less<>> params_;
  std::uint64_t seed_;
};

}  // namespace spillway
