// The host memory that the device copies from and to: one mapping of the host, all of it registered with CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/arena.h"
#include "gpu/context.h"

namespace spillway::cuda {

class PinnedArena {
 public:
  // Some drivers and virtual machines bound what one registration may be, but not their sum. Copies across a border are
  // cut there, so pieces are as large as can be.
  static constexpr std::int64_t kPieceBytes[] = {std::int64_t{1} << 50, std::int64_t{32} << 30, std::int64_t{1} << 30};

  // Registers the memory in pieces of the first size that CUDA takes, and enters them into the Context's memory map.
  // `stretches`: see Device::allocate_pinned(). Throws MemoryError: memory that CUDA refuses to register is not quietly
  // used as it is.
  PinnedArena(Context& context, std::int64_t bytes, std::span<const std::int64_t> piece_bytes = kPieceBytes,
              std::span<const ByteRange> stretches = {});
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
