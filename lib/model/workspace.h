// Where a layer call's temporaries lie in its workspace. The layout is computed once by this planner and
// used both for the size and for the pointers, so the two cannot disagree. Private to lib/model.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway {

// A region of the workspace.
struct Region {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;

  template <class T = void>
  T* in(std::span<std::byte> workspace) const {
    assert(offset + bytes <= static_cast<std::int64_t>(workspace.size()));
    return reinterpret_cast<T*>(workspace.data() + offset);
  }

  std::span<std::byte> span_in(std::span<std::byte> workspace) const {
    return workspace.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
  }
};

// Stacks regions; release_to() ends the lifetime of everything taken since the matching mark().
class WorkspacePlanner {
 public:
  static constexpr std::int64_t kAlignment = 256;  // of the device tier; cuBLASLt asks for it of its workspace

  Region take(std::int64_t bytes) {
    const Region region{top_, bytes};
    top_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (top_ > peak_) peak_ = top_;
    return region;
  }

  std::int64_t mark() const { return top_; }
  void release_to(std::int64_t mark) { top_ = mark; }

  // The most bytes alive at once.
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t top_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace spillway
