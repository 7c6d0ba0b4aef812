// Neighbouring elements moved by one instruction, for kernels whose traffic is what they cost.
#pragma once

#include <cstdint>

namespace spillway::cuda {

// W elements at a multiple of W elements' bytes.
template <class T, int W>
struct alignas(W * sizeof(T)) Group {
  T of[W];

  __device__ static Group load(const T* from) { return *reinterpret_cast<const Group*>(from); }
  __device__ void store(T* to) const { *reinterpret_cast<Group*>(to) = *this; }
};

// Whether a Group<T, W> may be at `p`; null is nowhere.
template <class T, int W>
bool is_aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % (W * sizeof(T)) == 0;
}

}  // namespace spillway::cuda
