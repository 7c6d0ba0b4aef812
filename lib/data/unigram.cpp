#include "data/unigram.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace spillway {

double unigram_entropy(const TokenData& data, std::int64_t vocabulary) {
  constexpr std::int64_t kChunk = 64 * 1024;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(vocabulary), 0);
  std::vector<std::int32_t> chunk(kChunk);
  for (std::int64_t first = 0; first < data.size(); first += kChunk) {
    const auto tokens = std::span(chunk).first(static_cast<std::size_t>(std::min(kChunk, data.size() - first)));
    data.read(first, tokens);
    for (const std::int32_t token : tokens) ++counts[static_cast<std::size_t>(token)];
  }
  double entropy = 0.0;
  for (const std::int64_t count : counts) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / static_cast<double>(data.size());
    entropy -= p * std::log(p);
  }
  return entropy;
}

}  // namespace spillway
