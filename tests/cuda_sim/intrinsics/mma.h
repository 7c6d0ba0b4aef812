// The simulation's half of gpu/intrinsics/mma.h: the same fragments in the same lanes, exchanged between the warp's
// threads. Products are summed in f32 in order of k, which the hardware does not promise.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_sim/simt.h"
#include "intrinsics/warp.h"

namespace spillway::gpu {

namespace detail {

// Element 0 (lower half) or 1 of a register.
template <class T>
float element(unsigned packed, int which) {
  static_assert(sizeof(T) == 2);
  const auto bits = static_cast<std::uint16_t>(packed >> (16 * which));
  return static_cast<float>(std::bit_cast<T>(bits));
}

// Each lane reads what it is to have from the rows that the other lanes point to, so that what it reads counts as its own.
inline cuda_sim::WarpValues exchange_rows(const void* row, const char* operation, Site site) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) {
    std::fprintf(stderr, "cuda_sim: violation: %s of a row at an address that is no multiple of 16 (%s:%d)\n", operation,
                 site.file, site.line);
    std::abort();
  }
  return cuda_sim::warp_exchange(kFullMask, &row, sizeof(row), operation, site);
}

inline std::uint16_t element_of(const void* row, unsigned column) {
  return static_cast<const std::uint16_t*>(row)[column];
}

}  // namespace detail

template <class T>
void mma_tile(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], Site site = cuda_sim::here()) {
  struct Operands {
    unsigned a[4], b[2];
  } own;
  std::memcpy(own.a, a, sizeof(a));
  std::memcpy(own.b, b, sizeof(b));
  const cuda_sim::WarpValues lanes = cuda_sim::warp_exchange(kFullMask, &own, sizeof(own), "mma_tile", site);
  const unsigned g = cuda_sim::lane() / 4, t = cuda_sim::lane() % 4;
  for (unsigned half = 0; half < 2; ++half) {       // k 0..7, then 8..15
    for (unsigned quarter = 0; quarter < 4; ++quarter) {  // two of these at a time
      const auto& row = lanes.of<Operands>(4 * g + quarter);
      for (int which = 0; which < 2; ++which) {
        const float above = detail::element<T>(row.a[2 * half], which), below = detail::element<T>(row.a[2 * half + 1], which);
        for (unsigned column = 0; column < 2; ++column) {
          const float right = detail::element<T>(lanes.of<Operands>(4 * (2 * t + column) + quarter).b[half], which);
          c[column] += above * right;
          c[2 + column] += below * right;
        }
      }
    }
  }
}

inline void load_matrices(unsigned (&registers)[4], const void* row, Site site = cuda_sim::here()) {
  const cuda_sim::WarpValues rows = detail::exchange_rows(row, "load_matrices", site);
  const unsigned g = cuda_sim::lane() / 4, t = cuda_sim::lane() % 4;
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    const void* from = rows.of<const void*>(8 * matrix + g);
    registers[matrix] = detail::element_of(from, 2 * t) | static_cast<unsigned>(detail::element_of(from, 2 * t + 1)) << 16;
  }
}

inline void load_matrices_transposed(unsigned (&registers)[4], const void* row, Site site = cuda_sim::here()) {
  const cuda_sim::WarpValues rows = detail::exchange_rows(row, "load_matrices_transposed", site);
  const unsigned g = cuda_sim::lane() / 4, t = cuda_sim::lane() % 4;
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    const void* upper = rows.of<const void*>(8 * matrix + 2 * t);
    const void* lower = rows.of<const void*>(8 * matrix + 2 * t + 1);
    registers[matrix] = detail::element_of(upper, g) | static_cast<unsigned>(detail::element_of(lower, g)) << 16;
  }
}

}  // namespace spillway::gpu
