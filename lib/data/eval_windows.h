// Evaluation data from its first token to its last, every token but the first a target exactly once.
#pragma once

#include <cstdint>
#include <span>

#include "data/token_data.h"

namespace spillway {

// Not thread-safe. Borrows the data.
class EvalWindows {
 public:
  // Throws DataError if the data has fewer than 2 tokens: then there is nothing to predict.
  EvalWindows(const TokenData& data, std::int64_t time);

  std::int64_t windows() const { return (num_targets() + time_ - 1) / time_; }
  std::int64_t num_targets() const { return data_.size() - 1; }

  // The next `batch` windows. tokens, targets: (batch, T) i32. What lies behind the end of the data is padded
  // with token 0 and target -1, which has no loss. Returns the number of real targets: 0 at the end. Allocates
  // nothing.
  std::int64_t next(std::int64_t batch, std::span<std::int32_t> tokens, std::span<std::int32_t> targets);

  void rewind() { first_ = 0; }

 private:
  const TokenData& data_;
  std::int64_t time_;
  std::int64_t first_ = 0;  // first input of the next window
};

}  // namespace spillway
