// The host memory that the device copies from and to: one mapping of the host, all of it registered with CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/arena.h"
#include "gpu/context.h"

namespace spillway::cuda {

class PinnedArena {
 public:
  // Enters the memory into the Context's memory map. Throws MemoryError: memory that CUDA refuses to register is not
  // quietly used as it is.
  PinnedArena(Context& context, std::int64_t bytes);
  ~PinnedArena();
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  std::byte* data() const { return mapping_.data(); }

 private:
  cudaError_t register_in_pieces(std::int64_t bytes, std::int64_t piece_bytes);
  void unregister() noexcept;

  Context& context_;
  Arena mapping_;
  struct Piece {
    std::byte* data;
    std::int64_t bytes;
  };
  std::vector<Piece> pieces_;
};

}  // namespace spillway::cuda
