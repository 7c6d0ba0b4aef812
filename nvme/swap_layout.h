// Which extent lies on which path, and where in its file. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "spillway/swap_store.h"

namespace spillway {

struct LayoutPath {
  std::string folder;
  double bandwidth = 1.0;        // relative to the others'
  int disk = 0;                  // index into `disks`: paths on one file system share its room
  std::int64_t header_base = 0;  // bytes of the header but for its table
};

struct LayoutDisk {
  std::int64_t free = 0;
};

struct ExtentPlace {
  int path = 0;
  std::int64_t offset = 0;  // in the path's file
};

struct SwapLayout {
  std::vector<ExtentPlace> places;       // of each extent
  std::vector<std::int64_t> file_bytes;  // of each path, the header included
};

// Hands out extents in their order to the paths they may lie on, each to the one that is then the least laden for its
// bandwidth, if it has room: so that each path gets its share, and neighbours, which are moved one after the other, lie on
// different ones. Extents that may lie on the same paths are balanced among themselves, those with the fewest choices first.
// Throws IoError with a table of paths, needed and free, if an extent has room nowhere.
SwapLayout lay_out(std::span<const SwapExtent> extents, std::span<const LayoutPath> paths, std::span<const LayoutDisk> disks);

}  // namespace spillway
