#include "data/sampler.h"

#include <algorithm>
#include <cassert>

#include <fmt/format.h>

#include "data/permutation.h"
#include "spillway/error.h"

namespace spillway {

Sampler::Sampler(const TokenData& data, const SamplerOptions& options, SampleCursor start)
    : data_(data), options_(options), rank_batch_(options.global_batch / options.world_size), cursor_(start) {
  assert(options.time > 0 && options.world_size > 0 && options.global_batch > 0);
  assert(options.global_batch % options.world_size == 0);
  assert(options.rank >= 0 && options.rank < options.world_size);
  if (data.size() < options.time + 1) {
    throw DataError(
        fmt::format("[data] sample {}: {} tokens are fewer than one sample of {} (sequence length {} + 1); "
                    "give more text or a shorter sequence",
                    data.description(), data.size(), options.time + 1, options.time));
  }
  if (start.epoch < 0 || start.position < 0 || start.position >= windows(start.epoch)) {
    throw DataError(fmt::format(
        "[data] continue {} at sample {} of epoch {}: the epoch has {} samples; the data, the sequence "
        "length or the seed is not the one the position was saved with",
        data.description(), start.position, start.epoch, start.epoch < 0 ? 0 : windows(start.epoch)));
  }
}

std::uint64_t Sampler::epoch_key(std::int64_t epoch) const {
  return mix_bits(mix_bits(options_.seed) + 0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(epoch) + 1));
}

std::int64_t Sampler::phase(std::int64_t epoch) const {
  // Data shorter than two windows has fewer phases that leave room for one.
  const std::int64_t phases = std::min(options_.time, data_.size() - options_.time);
  return static_cast<std::int64_t>(mix_bits(epoch_key(epoch)) % static_cast<std::uint64_t>(phases));
}

std::int64_t Sampler::windows(std::int64_t epoch) const {
  return (data_.size() - 1 - phase(epoch)) / options_.time;
}

SampleCursor Sampler::advanced(SampleCursor cursor, std::int64_t samples) const {
  cursor.position += samples;
  for (std::int64_t count; cursor.position >= (count = windows(cursor.epoch));) {
    cursor.position -= count;
    ++cursor.epoch;
  }
  return cursor;
}

std::int64_t Sampler::first_token(const SampleCursor& sample) const {
  const Permutation order(windows(sample.epoch), epoch_key(sample.epoch));
  return phase(sample.epoch) + order(sample.position) * options_.time;
}

void Sampler::next(std::int64_t batch, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
  const auto time = static_cast<std::size_t>(options_.time);
  assert(tokens.size() == static_cast<std::size_t>(batch) * time && targets.size() == tokens.size());
  for (std::size_t row = 0; row < static_cast<std::size_t>(batch); ++row) {
    const std::int64_t first = first_token(advanced(cursor_, options_.rank * rank_batch_ + taken_));
    data_.read(first, tokens.subspan(row * time, time));
    data_.read(first + 1, targets.subspan(row * time, time));
    if (++taken_ == rank_batch_) {
      taken_ = 0;
      cursor_ = advanced(cursor_, options_.global_batch);
    }
  }
}

}  // namespace spillway
