#include "data/eval_windows.h"

#include <algorithm>
#include <cassert>

#include <fmt/format.h>

#include "spillway/error.h"

namespace spillway {

EvalWindows::EvalWindows(const TokenData& data, std::int64_t time, std::int64_t rank, std::int64_t world_size)
    : data_(data), time_(time), rank_(rank), world_size_(world_size) {
  assert(time > 0 && rank >= 0 && rank < world_size);
  if (data.size() < 2) {
    throw DataError(fmt::format("[data] evaluate on {}: {} token leaves nothing to predict; give at least 2",
                                data.description(), data.size()));
  }
}

std::int64_t EvalWindows::next(std::int64_t batch, std::span<std::int32_t> tokens,
                               std::span<std::int32_t> targets) {
  assert(static_cast<std::int64_t>(tokens.size()) == batch * time_ && targets.size() == tokens.size());
  // Consecutive windows are consecutive tokens, so a batch is one run of them.
  const std::int64_t run = batch * time_;
  const std::int64_t first = std::min(first_ + rank_ * run, num_targets());
  const std::int64_t real = std::min(run, num_targets() - first);
  const auto count = static_cast<std::size_t>(real);
  data_.read(first, tokens.first(count));
  data_.read(first + 1, targets.first(count));
  std::ranges::fill(tokens.subspan(count), 0);
  std::ranges::fill(targets.subspan(count), -1);
  first_ = std::min(first_ + world_size_ * run, num_targets());
  return real;
}

}  // namespace spillway
