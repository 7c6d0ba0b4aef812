// What a kernel is given, and the kernels there are. Included by the files of instruction sets, so it holds
// declarations and plain data only.
#pragma once

#include <cstdint>

#include "base/optimizer_scalars.h"
#include "spillway/dtype.h"
#include "spillway/optimizer.h"

// A kernel is one function without calls; but where sanitizers instrument each access, the compiler takes minutes over that.
#ifdef SPILLWAY_SANITIZED
#define SPILLWAY_INLINE inline
#else
#define SPILLWAY_INLINE inline __attribute__((always_inline))
#endif

namespace spillway::cpu_adam {

constexpr std::int64_t kBlock = 16;  // elements that a kernel takes at once: a cache line of f32

// A part of an OptimizerTile that kernels can take: whole blocks, of kMomentBlock elements if its moments are block8, and
// positions that agree in their upper 32 bits.
struct Piece {
  OptimizerKind kind;
  MomentFormat moment_format;
  float* master;              // nullptr: split
  std::uint16_t* master_low;
  void* moments[2];
  std::uint8_t* scales[2];
  const void* gradient;
  DType gradient_dtype;
  void* weight;               // nullptr: not wanted
  DType weight_dtype;
  bool stream_weight;         // past the cache: 16 bits each, and aligned to 32 bytes
  std::int64_t n;
  std::uint32_t position;     // the lower half
  double* square_sums;        // kBlock of them, added to; nullptr: not wanted
};

struct Kernels {
  void (*update)(const Piece& piece, const OptimizerScalars& scalars);
  // Adds the squares of n elements, whole blocks, to kBlock sums.
  void (*add_squares)(const void* gradient, DType dtype, std::int64_t n, double* square_sums);
};

// Those of one instruction set each; which are linked, and on which CPU they may be called, the list in isa.h says.
const Kernels& scalar_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512bf16_kernels();
const Kernels& neon_kernels();

}  // namespace spillway::cpu_adam
