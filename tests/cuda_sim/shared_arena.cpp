#include "cuda_sim/shared_arena.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "cuda_sim/sanitizers.h"
#include "cuda_sim/violation.h"

namespace cuda_sim {

namespace {

constexpr std::size_t kArenaBytes = 512 * 1024;
constexpr std::size_t kGuardBytes = 64;
constexpr unsigned char kGuardByte = 0xa5;
constexpr std::size_t kDynamicAlignment = 128;  // as intrinsics/shared_memory.h promises

unsigned char* align(unsigned char* p, std::size_t alignment) {
  return reinterpret_cast<unsigned char*>((reinterpret_cast<std::uintptr_t>(p) + alignment - 1) & ~(alignment - 1));
}

}  // namespace

SharedArena::SharedArena() {
  void* const memory = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) violation("no memory for the shared memory of a block");
  memory_ = static_cast<unsigned char*>(memory);
}

SharedArena::~SharedArena() {
  unpoison(memory_, kArenaBytes);
  munmap(memory_, kArenaBytes);
}

void SharedArena::begin_launch(std::size_t dynamic_bytes, std::size_t limit) {
  const Unseen unseen;
  poison(memory_, kArenaBytes);
  end_ = memory_;
  used_ = 0;
  limit_ = limit;
  num_pieces_ = 0;
  add(nullptr, dynamic_bytes, kDynamicAlignment, {"dynamic shared memory", 0});
}

void SharedArena::begin_block() {
  const Unseen unseen;
  for (int i = 0; i < num_pieces_; ++i) std::memset(pieces_[i].data, 0xff, pieces_[i].bytes);
}

void SharedArena::end_block() const {
  if (under_asan()) return;  // the guards are poisoned
  for (int i = 0; i < num_pieces_; ++i) {
    const Piece& piece = pieces_[i];
    for (std::size_t offset = 0; offset < kGuardBytes; ++offset) {
      if (piece.data[piece.bytes + offset] != kGuardByte) {
        violation("a block wrote %zu bytes past the %zu bytes of shared memory of %s:%d", offset, piece.bytes, piece.site.file,
                  piece.site.line);
      }
    }
  }
}

void* SharedArena::array(const void* identity, std::size_t bytes, std::size_t alignment, Site site) {
  for (int i = 1; i < num_pieces_; ++i) {
    if (pieces_[i].identity == identity) return pieces_[i].data;
  }
  const Unseen unseen;
  return add(identity, bytes, alignment < 16 ? 16 : alignment, site);
}

void* SharedArena::add(const void* identity, std::size_t bytes, std::size_t alignment, Site site) {
  used_ += bytes;
  if (used_ > limit_) {
    violation("%s:%d: %zu bytes bring the block's shared memory to %zu bytes; this launch may have %zu", site.file, site.line, bytes, used_,
              limit_);
  }
  unsigned char* const data = align(end_, alignment);
  if (num_pieces_ == kMaxPieces || data + bytes + kGuardBytes > memory_ + kArenaBytes) {
    violation("%s:%d: the kernel declares more shared arrays than the simulation has room for", site.file, site.line);
  }
  end_ = data + bytes + kGuardBytes;
  pieces_[num_pieces_++] = {identity, data, bytes, site};
  unpoison(data, bytes);
  std::memset(data, 0xff, bytes);
  if (!under_asan()) std::memset(data + bytes, kGuardByte, kGuardBytes);
  return data;
}

}  // namespace cuda_sim
