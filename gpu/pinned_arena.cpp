#include "gpu/pinned_arena.h"

#include <algorithm>
#include <string>

#include "base/text.h"
#include "gpu/check.h"
#include "spillway/error.h"

namespace spillway::cuda {

PinnedArena::PinnedArena(Context& context, std::int64_t bytes, std::span<const std::int64_t> piece_bytes,
                         std::span<const ByteRange> stretches)
    : context_(context), mapping_("pinned arena", bytes, Pin::no, stretches) {
  context_.enter();
  cudaError_t error = cudaSuccess;
  for (const std::int64_t size : piece_bytes) {
    error = register_in_pieces(bytes, size);
    if (error == cudaSuccess) break;
    unregister();
  }
  if (error != cudaSuccess) {
    throw MemoryError("[" + context_.name + "] register " + human_bytes(bytes) + " of host memory for the pinned arena: " + cudaGetErrorString(error) +
                      " (" + cudaGetErrorName(error) + "), in pieces too; lower spillway.host_memory or offload to nvme, and look at the limits on "
                      "locked memory (ulimit -l, the container's memory limit)");
  }
  for (const Piece& piece : pieces_) context_.memory.add(piece.data, piece.bytes, Place::pinned);
}

PinnedArena::~PinnedArena() {
  context_.enter_to_release();
  unregister();
}

cudaError_t PinnedArena::register_in_pieces(std::int64_t bytes, std::int64_t piece_bytes) {
  for (std::int64_t offset = 0; offset < bytes; offset += piece_bytes) {
    const Piece piece = {mapping_.data() + offset, std::min(piece_bytes, bytes - offset)};
    const cudaError_t error = cudaHostRegister(piece.data, static_cast<std::size_t>(piece.bytes), cudaHostRegisterPortable);
    if (error != cudaSuccess) {
      cudaGetLastError();  // told by this call's result
      return error;
    }
    pieces_.push_back(piece);
  }
  return cudaSuccess;
}

void PinnedArena::unregister() noexcept {
  for (const Piece& piece : pieces_) static_cast<void>(cudaHostUnregister(piece.data));
  pieces_.clear();
}

}  // namespace spillway::cuda
