// The simulation's half of gpu/intrinsics/copy_async.h: bytes arrive at the wait and not before, and are all ones (NaN)
// until then; so a missing wait shows, and so does a source that is overwritten too early.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace spillway::gpu {

class AsyncCopies {
 public:
  AsyncCopies() = default;
  AsyncCopies(const AsyncCopies&) = delete;
  AsyncCopies& operator=(const AsyncCopies&) = delete;
  // The hardware would write into the shared memory of a later block.
  ~AsyncCopies() {
    if (!copies_.empty()) refuse("a thread ends while its asynchronous copies are under way");
  }

  void copy_16(void* shared, const void* global, bool wanted) {
    const auto misaligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kBytes != 0; };
    if (misaligned(shared) || (wanted && misaligned(global))) {
      refuse("an asynchronous copy of 16 bytes at an address that is no multiple of 16");
    }
    std::memset(shared, 0xff, kBytes);
    copies_.push_back({shared, wanted ? global : nullptr, groups_});
  }

  void commit() { ++groups_; }

  template <int kPending>
  void wait() {
    std::size_t arrived = 0;
    while (arrived < copies_.size() && copies_[arrived].group + kPending < groups_) arrive(copies_[arrived++]);
    copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(arrived));
  }

 private:
  static constexpr std::size_t kBytes = 16;

  struct Copy {
    void* shared;
    const void* global;  // null: zeros
    std::int64_t group;
  };

  [[noreturn]] static void refuse(const char* what) {
    std::fprintf(stderr, "cuda_sim: violation: %s\n", what);
    std::abort();
  }

  static void arrive(const Copy& copy) {
    if (copy.global != nullptr) {
      std::memcpy(copy.shared, copy.global, kBytes);
    } else {
      std::memset(copy.shared, 0, kBytes);
    }
  }

  std::vector<Copy> copies_;  // in order of their start
  std::int64_t groups_ = 0;   // committed
};

}  // namespace spillway::gpu
