// How training state leaves the engine and comes back, in terms of parameter names and element ranges: what a
// checkpoint is made of. Which rank, tier or tile holds it is not seen from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/dtype.h"
#include "spillway/optimizer.h"

namespace spillway {

// What may be kept of a parameter. Trained ones: the master, f32, and the moments of the optimizer in use; the 16-bit
// weight is the rounded master and is not kept. Frozen ones: `weight` alone, in the dtype of the model.
enum class StateSection : std::uint8_t { master, exp_avg, exp_avg_sq, sum, momentum_buffer, weight };
inline constexpr int kStateSections = 6;

std::string_view name_of(StateSection section);  // "master", ...

// Elements [begin, end) of a parameter.
struct StateRange {
  std::string param;
  std::int64_t begin;
  std::int64_t end;
};

// What is copied out at a time: consecutive ranges of the parameters of one layer that this rank saves. A section holds
// the values of all ranges in order without gaps.
struct SnapshotItem {
  bool frozen;
  // Of its bytes. Frozen: `n` and `bytes` (a multiple of 4096) alone mean something; the bytes are those of the weights,
  // in the dtype of the model.
  StateLayout layout;
  std::vector<StateRange> ranges;

  std::int64_t bytes() const { return layout.bytes; }
};

// Takes a snapshot in. Called on a thread of the engine, item after item in the engine's order; what it throws
// ends the run with that error.
class SnapshotSink {
 public:
  virtual ~SnapshotSink() = default;

  // Page-aligned memory for the bytes of this item. May block until memory is free again: the update of the
  // item's state waits meanwhile.
  virtual std::span<std::byte> acquire(std::size_t item) = 0;

  // The memory is filled, and the sink's.
  virtual void submit(std::size_t item) = 0;
};

// Where a run that goes on gets its state from.
class StateSource {
 public:
  virtual ~StateSource() = default;

  // Values of elements [begin, begin + out.size()) of a parameter's section, as f32; `weight` of a parameter that has a
  // master is the master rounded to the model's dtype, `master` of one that has none is its weight, and its moments
  // are zero. Throws IoError if they are not there or not what was written. One thread at a time.
  virtual void read(const std::string& param, StateSection section, std::int64_t begin, std::span<float> out) = 0;
};

}  // namespace spillway
