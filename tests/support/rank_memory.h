// Memory of a rank's device for the buffers of a test, which go there and come back through pinned memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <stdexcept>
#include <vector>

#include "spillway/device.h"

namespace spillway::testing {

// Thread-safe. Buffers stay until reset().
class RankMemory {
 public:
  explicit RankMemory(Device& device) : arena_(device.allocate_arena(kArenaBytes)), pinned_(device.allocate_pinned(kPinnedBytes)) {}

  void reset() { used_ = pinned_used_ = 0; }

  // A buffer with this content, for work of the stream from now on.
  std::byte* upload(Stream& stream, std::span<const std::byte> content) {
    std::byte* const at = take(arena_, used_, kArenaBytes, content.size());
    if (content.empty()) return at;
    std::byte* const staged = take(pinned_, pinned_used_, kPinnedBytes, content.size());
    std::memcpy(staged, content.data(), content.size());
    stream.copy(at, staged, static_cast<std::int64_t>(content.size()));
    return at;
  }

  // Its content when work of the stream up to now is done. In pinned memory, for reading after the stream has been
  // synchronised.
  std::span<const std::byte> download(Stream& stream, const std::byte* at, std::size_t bytes) {
    std::byte* const staged = take(pinned_, pinned_used_, kPinnedBytes, bytes);
    if (bytes > 0) stream.copy(staged, at, static_cast<std::int64_t>(bytes));
    return {staged, bytes};
  }

 private:
  // Eight ranks with parts of 1 MiB for half of the others, sent and received; each goes and comes.
  static constexpr std::int64_t kArenaBytes = std::int64_t{10} << 20, kPinnedBytes = 2 * kArenaBytes;
  static constexpr std::int64_t kAlignment = 256;

  std::byte* take(std::byte* memory, std::int64_t& used, std::int64_t limit, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::byte* const at = memory + used;
    used += (static_cast<std::int64_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    if (used > limit) throw std::logic_error("a test needs more memory than a rank has for it");
    return at;
  }

  std::mutex mutex_;
  std::byte* const arena_;
  std::byte* const pinned_;
  std::int64_t used_ = 0, pinned_used_ = 0;
};

inline bool same(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.size() == other.size() && (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0);
}

}  // namespace spillway::testing
