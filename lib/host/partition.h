// How kernels cut their work: contiguous pieces whose number and sizes depend on the shape alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/parallel.h"

namespace spillway::host {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) { return divide_up(a, multiple) * multiple; }

// [0, total) in pieces of `size`, the last one shorter.
struct Cut {
  std::int64_t total, size;

  constexpr std::int64_t count() const { return divide_up(total, size); }
  constexpr std::int64_t begin(std::int64_t piece) const { return piece * size; }
  constexpr std::int64_t length(std::int64_t piece) const { return std::min(size, total - begin(piece)); }
};

// The fewest pieces of at most `limit`, about equally long, in multiples of `grain`; `grain` divides `limit`.
constexpr Cut cut_evenly(std::int64_t total, std::int64_t limit, std::int64_t grain) {
  const std::int64_t pieces = std::max<std::int64_t>(1, divide_up(total, limit));
  return {total, std::max(grain, round_up(divide_up(total, pieces), grain))};
}

// Elements per piece of element-wise work: a few microseconds, small against a step, large against
// handing out a piece.
inline constexpr std::int64_t kElementPiece = 16384;

// (rows, columns) element-wise work in whole rows.
constexpr Cut cut_rows(std::int64_t rows, std::int64_t columns) {
  return {rows, std::max<std::int64_t>(1, kElementPiece / std::max<std::int64_t>(1, columns))};
}

// f(begin, length) for every piece, in parallel.
template <class F>
void for_each_piece(const Cut& cut, const F& f) {
  parallel_for(cut.count(), [&](std::int64_t piece) { f(cut.begin(piece), cut.length(piece)); });
}

}  // namespace spillway::host
