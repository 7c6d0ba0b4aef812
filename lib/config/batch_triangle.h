// train_batch_size = micro_batch_size * accumulation_steps * world_size: completes what is missing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace spillway::config {

// The three sizes as given; unset: to be worked out.
struct BatchSizes {
  std::optional<std::int64_t> train;
  std::optional<std::int64_t> micro;
  std::optional<std::int64_t> accumulation;

  bool operator==(const BatchSizes&) const = default;
};

// Fills in the missing ones as DeepSpeed does: from two the third, from the train batch alone accumulation 1, from
// the micro batch alone accumulation 1. With neither, the micro batch is 1 (DeepSpeed gives up there). Returns an
// empty string, or why the numbers do not fit together and which changes would make them fit.
std::string complete(BatchSizes& sizes, std::int64_t world_size);

// "1 rank", "4 ranks".
std::string ranks(std::int64_t world_size);

}  // namespace spillway::config
