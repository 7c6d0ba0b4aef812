#include "data/eval_windows.h"

#include <algorithm>
#include <cassert>

#include <fmt/format.h>

#include "spillway/error.h"

namespace spillway {

EvalWindows::EvalWindows(const TokenData& data, std::int64_t time) : data_(data), time_(time) {
  assert(time > 0);
  if (data.size() < 2) {
    throw DataError(fmt::format("[data] evaluate on {}: {} token leaves nothing to predict; give at least 2",
                                data.description(), data.size()));
  }
}

std::int64_t EvalWindows::next(std::int64_t batch, std::span<std::int32_t> tokens,
                               std::span<std::int32_t> targets) {
  assert(static_cast<std::int64_t>(tokens.size()) == batch * time_ && targets.size() == tokens.size());
  // Consecutive windows are consecutive tokens, so a batch is one run of them.
  const std::int64_t real = std::min(batch * time_, num_targets() - first_);
  const auto count = static_cast<std::size_t>(real);
  data_.read(first_, tokens.first(count));
  data_.read(first_ + 1, targets.first(count));
  std::ranges::fill(tokens.subspan(count), 0);
  std::ranges::fill(targets.subspan(count), -1);
  first_ += real;
  return real;
}

}  // namespace spillway
