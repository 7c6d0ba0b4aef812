// The shared memory of the block that a worker runs.
#pragma once

#include <cstddef>

#include "cuda_sim/simt.h"

namespace cuda_sim {

class SharedArena {
 public:
  SharedArena();
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  // `limit`: what static arrays and dynamic memory may take together.
  void begin_launch(std::size_t dynamic_bytes, std::size_t limit);
  // Every byte becomes 0xff, a NaN.
  void begin_block();
  // Writes past an array that stayed within the guard behind it are a violation.
  void end_block() const;

  void* array(const void* identity, std::size_t bytes, std::size_t alignment, Site site);
  void* dynamic() const { return pieces_[0].data; }
  std::size_t dynamic_bytes() const { return pieces_[0].bytes; }

 private:
  struct Piece {
    const void* identity;
    unsigned char* data;
    std::size_t bytes;
    Site site;
  };
  static constexpr int kMaxPieces = 64;

  void* add(const void* identity, std::size_t bytes, std::size_t alignment, Site site);

  unsigned char* memory_;
  unsigned char* end_ = nullptr;  // of what is given out, guards included
  std::size_t used_ = 0;          // without guards
  std::size_t limit_ = 0;
  Piece pieces_[kMaxPieces];  // [0]: dynamic
  int num_pieces_ = 0;
};

}  // namespace cuda_sim
