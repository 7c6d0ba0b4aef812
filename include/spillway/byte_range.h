// A stretch of memory, in the words that plans and devices share.
#pragma once

#include <cstdint>

namespace spillway {

// Bytes [begin, end) of an arena.
struct ByteRange {
  std::int64_t begin;
  std::int64_t end;
};

}  // namespace spillway
