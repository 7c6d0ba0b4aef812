// Evaluation data from its first token to its last, every token but the first a target exactly once. Ranks take batches
// of consecutive windows in turn. When the windows do not come out even, ranks without any get windows of padding, which
// weigh nothing: every rank has as many batches as every other, so that no collective waits for one that never comes.
#pragma once

#include <cstdint>
#include <span>

#include "data/token_data.h"

namespace spillway {

// Not thread-safe. Borrows the data.
class EvalWindows {
 public:
  // Throws DataError if the data has fewer than 2 tokens: then there is nothing to predict.
  EvalWindows(const TokenData& data, std::int64_t time, std::int64_t rank = 0, std::int64_t world_size = 1);

  // Of all ranks together.
  std::int64_t windows() const { return (num_targets() + time_ - 1) / time_; }
  std::int64_t num_targets() const { return data_.size() - 1; }

  // This rank's next `batch` windows, which is the same number on all ranks. tokens, targets: (batch, T) i32. What lies
  // behind the end of the data is padded with token 0 and target -1, which has no loss. Returns the number of real
  // targets among them, which may be 0 here while other ranks have some: at_end() says when to stop. Allocates nothing.
  std::int64_t next(std::int64_t batch, std::span<std::int32_t> tokens, std::span<std::int32_t> targets);

  // No rank has a window left. The same on all ranks after equal calls of next().
  bool at_end() const { return first_ == num_targets(); }

  void rewind() { first_ = 0; }

 private:
  const TokenData& data_;
  std::int64_t time_;
  std::int64_t rank_;
  std::int64_t world_size_;
  std::int64_t first_ = 0;  // first input of rank 0's next window; num_targets() at the end
};

}  // namespace spillway
