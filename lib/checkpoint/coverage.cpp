// Whether the pieces of a checkpoint make up its tensors: nothing missing, nothing twice.
#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "checkpoint/manifest.h"

namespace spillway::checkpoint {

namespace {

auto order_of(const Piece& piece) { return std::tuple(piece.tensor, piece.section, piece.begin, piece.end); }

}  // namespace

std::string sort_and_check_coverage(Manifest& manifest) {
  std::ranges::sort(manifest.pieces, {}, order_of);
  std::size_t next = 0;
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const TensorEntry& tensor = manifest.tensors[t];
    for (const StateSection section : manifest.sections_of(tensor)) {
      std::int64_t covered = 0;
      while (next < manifest.pieces.size()) {
        const Piece& piece = manifest.pieces[next];
        if (piece.tensor != t || piece.section != section) break;
        if (piece.begin != covered) {
          return fmt::format("{} of {}: elements {} to {} are there {}", name_of(section), tensor.name, std::min(piece.begin, covered),
                             std::max(piece.begin, covered), piece.begin > covered ? "in no piece" : "in two pieces");
        }
        covered = piece.end;
        ++next;
      }
      if (covered != tensor.num_elements()) {
        return fmt::format("{} of {}: elements {} to {} are there in no piece", name_of(section), tensor.name, covered,
                           tensor.num_elements());
      }
    }
  }
  if (next == manifest.pieces.size()) return {};
  const Piece& piece = manifest.pieces[next];
  return fmt::format("{} of {}: this parameter has no such section", name_of(piece.section), manifest.tensors[piece.tensor].name);
}

}  // namespace spillway::checkpoint
