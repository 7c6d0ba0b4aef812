// Several token files as one sequence.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace spillway {

// The tokens of all files in the order given, as if they were one file. A sample may cross from one file
// into the next: how a text is cut into files never changes what is trained on.
// Immutable after construction; thread-safe.
class TokenData {
 public:
  // Throws DataError as TokenFile does, and if `paths` is empty.
  TokenData(const std::vector<std::string>& paths, std::int64_t vocabulary);

  std::int64_t size() const { return ends_.back(); }  // tokens
  std::span<const TokenFile> files() const { return files_; }

  // The files, for error texts: "'a.txt'" or "'a.txt' and 2 more".
  std::string description() const;

  // Copies tokens [first, first + out.size()), which lie within [0, size()). Allocates nothing.
  void read(std::int64_t first, std::span<std::int32_t> out) const;

 private:
  std::vector<TokenFile> files_;
  std::vector<std::int64_t> ends_;  // tokens up to and including each file
};

}  // namespace spillway
