// The order in which training sees its data.
//
// An epoch cuts the tokens into consecutive windows: a window of T inputs also holds the token after them, the
// target of the last, which is the first input of the next window. So every token but the first is a target at
// most once an epoch. Where the first window begins (its phase, 0 to T-1) and the order of the windows are
// pseudo-random functions of (seed, epoch). Each window comes exactly once per epoch; a batch that reaches
// the end of an epoch goes on in the next.
//
// Sample i of a run is a function of (data, T, seed, i) alone. A step takes the next `global_batch` samples,
// and rank r of W the r-th of W equal slices of them, so neither ranks nor micro-batches change what a step
// sees.
#pragma once

#include <cstdint>
#include <span>

#include "data/token_data.h"

namespace spillway {

// Where the next step's samples begin. All there is to save.
struct SampleCursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // samples of the epoch already taken

  bool operator==(const SampleCursor&) const = default;
};

struct SamplerOptions {
  std::int64_t time = 0;          // T: inputs per sample
  std::int64_t global_batch = 1;  // samples per step, over all ranks; a multiple of world_size
  std::uint64_t seed = 0;
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
};

// Not thread-safe. Borrows the data.
class Sampler {
 public:
  // Throws DataError if the data has fewer than T + 1 tokens, or if `start` is no position of it (which means
  // that the data is not what it was when the cursor was saved).
  Sampler(const TokenData& data, const SamplerOptions& options, SampleCursor start = {});

  // This rank's next `batch` samples. tokens, targets: (batch, T) i32. Allocates nothing.
  void next(std::int64_t batch, std::span<std::int32_t> tokens, std::span<std::int32_t> targets);

  // The start of the step that the next sample belongs to: save it between steps.
  SampleCursor cursor() const { return cursor_; }

  // Windows of an epoch; differs by at most one between epochs, with their phase.
  std::int64_t windows(std::int64_t epoch) const;

 private:
  std::int64_t phase(std::int64_t epoch) const;
  std::uint64_t epoch_key(std::int64_t epoch) const;
  SampleCursor advanced(SampleCursor cursor, std::int64_t samples) const;
  std::int64_t first_token(const SampleCursor& sample) const;

  const TokenData& data_;
  SamplerOptions options_;
  std::int64_t rank_batch_;  // samples of this rank per step
  std::int64_t taken_ = 0;   // of them, in this step
  SampleCursor cursor_;
};

}  // namespace spillway
