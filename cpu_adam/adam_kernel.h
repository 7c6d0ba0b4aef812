// The Adam update of a tile: the one kernel text, included by one small .cpp per instruction set.
//
// Design
//
// One pass. Per element the pass reads master, both moments and the gradient, and writes master, both
// moments and the 16-bit weight: 28 bytes with a 16-bit gradient, against about fifteen operations, so
// memory bandwidth is the limit. Unscaling, clipping, weight decay and the conversions on both sides ride
// along for free; as separate passes they would cost nearly three times the whole update.
//
// Same bits everywhere. The text is a template over an instruction set `Isa`, which supplies a vector of
// floats (`float` itself for the scalar one), its loads, stores and square root, and nothing else. Each
// lane performs the same sequence of single IEEE operations; sqrt and division are correctly rounded on
// every instruction set, and no multiplication is fused with an addition, because a fused operation on a
// CPU without the instruction is a library call a hundred times slower. (The project builds with
// -ffp-contract=off, so the compiler does not fuse either.) An element's result depends on nothing but
// that element, hence not on alignment, on its position in a vector or on how a tile is cut into calls.
//
// Tails. A vector kernel updates whole blocks of 16 elements and returns how far it came; the caller gives
// the rest to the scalar kernel. Same bits, no masks, and no access past the end.
//
// Linkage. The .cpp files are compiled with flags that not every CPU honours. An inline function emitted
// by one of them as a weak symbol could be the copy that the linker keeps for the whole program, which
// would then crash an older CPU far from here. Therefore everything in this file and in the .cpp files has
// internal linkage; the xsimd architecture tag is a type of an anonymous namespace, which gives internal
// linkage to every xsimd template instantiated with it; and no inline function of other headers is called
// from a vector kernel. The only external symbol of such a file is its entry point; a test looks.
//
// Memory. Each block prefetches 1 KiB ahead in each input. The 16-bit weights are not read again soon by
// this core, so in large tiles they are written past the cache, which saves reading the lines first.
// master and the moments are in the cache already when they are written, and streaming them is a loss.
#pragma once

#include <cstdint>

#include "base/adam_scalars.h"
#include "spillway/cpu_adam.h"
#include "spillway/dtype.h"
#include "updates.h"

namespace spillway::cpu_adam {
namespace {

constexpr std::int64_t kBlock = 16;  // elements; a cache line of f32
constexpr std::uintptr_t kPrefetchBytes = 1024;

// Smaller tiles fit in a second-level cache, and their weights may be wanted from there.
constexpr std::int64_t kStreamElements = 64 * 1024;

// What becomes of the updated master: stored as T, stored as T past the cache, or nothing.
template <class T>
struct Stored {
  using type = T;
  static constexpr bool streamed = false;
};
template <class T>
struct Streamed {
  using type = T;
  static constexpr bool streamed = true;
};
struct Dropped {
  using type = void;
};

// The scalars, broadcast once per call.
template <class Vector>
struct Broadcast {
  explicit Broadcast(const AdamScalars& s)
      : gradient_scale(s.gradient_scale),
        decay(s.decoupled ? s.decay_factor : s.weight_decay),
        beta1(s.beta1),
        one_minus_beta1(s.one_minus_beta1),
        beta2(s.beta2),
        one_minus_beta2(s.one_minus_beta2),
        step_size(s.step_size),
        sqrt_correction2(s.sqrt_correction2),
        epsilon(s.epsilon) {}

  Vector gradient_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_correction2, epsilon;
};

inline void prefetch_ahead(const void* address) {
  // Past the end of an array this is a hint about memory that is never read, so no pointer is formed to it.
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(address) + kPrefetchBytes));
}

// The arrays of a tile, typed.
template <class Gradient, class Weight>
struct Arrays {
  explicit Arrays(const AdamTile& tile)
      : master(tile.master),
        exp_avg(tile.exp_avg),
        exp_avg_sq(tile.exp_avg_sq),
        gradient(static_cast<const Gradient*>(tile.gradient)),
        weight(static_cast<typename Weight::type*>(tile.weight)) {}

  float* __restrict master;
  float* __restrict exp_avg;
  float* __restrict exp_avg_sq;
  const Gradient* __restrict gradient;
  typename Weight::type* __restrict weight;
};

// Elements i to i + Isa::lanes - 1. The order of operations is stated at adam_update().
template <class Isa, class Gradient, class Weight, bool decoupled>
inline __attribute__((always_inline)) void update_vector(const Arrays<Gradient, Weight>& a, std::int64_t i,
                                                         const Broadcast<typename Isa::Vector>& k) {
  using Vector = typename Isa::Vector;
  Vector master = Isa::load(a.master + i);
  Vector g = k.gradient_scale * Isa::load(a.gradient + i);
  if constexpr (decoupled) {
    master = master * k.decay;
  } else {
    g = g + k.decay * master;
  }
  const Vector exp_avg = k.beta1 * Isa::load(a.exp_avg + i) + k.one_minus_beta1 * g;
  const Vector exp_avg_sq = k.beta2 * Isa::load(a.exp_avg_sq + i) + (k.one_minus_beta2 * g) * g;
  const Vector denominator = Isa::sqrt(exp_avg_sq) / k.sqrt_correction2 + k.epsilon;
  master = master - (k.step_size * exp_avg) / denominator;

  Isa::store(a.exp_avg + i, exp_avg);
  Isa::store(a.exp_avg_sq + i, exp_avg_sq);
  Isa::store(a.master + i, master);
  if constexpr (!__is_same(Weight, Dropped)) {
    if constexpr (Weight::streamed) {
      Isa::stream(a.weight + i, master);
    } else {
      Isa::store(a.weight + i, master);
    }
  }
}

template <class Isa, class Gradient, class Weight, bool decoupled>
std::int64_t update_blocks(const AdamTile& tile, const AdamScalars& scalars) {
  const Arrays<Gradient, Weight> a(tile);
  const Broadcast<typename Isa::Vector> k(scalars);
  const std::int64_t n = tile.n;
  std::int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    prefetch_ahead(a.master + i);
    prefetch_ahead(a.exp_avg + i);
    prefetch_ahead(a.exp_avg_sq + i);
    prefetch_ahead(a.gradient + i);
    for (std::int64_t j = 0; j < kBlock; j += Isa::lanes) update_vector<Isa, Gradient, Weight, decoupled>(a, i + j, k);
  }
  if constexpr (Isa::lanes == 1) {
    for (; i < n; ++i) update_vector<Isa, Gradient, Weight, decoupled>(a, i, k);
  }
  return i;
}

template <class Isa, class Gradient, class Weight>
std::int64_t with_weight(const AdamTile& tile, const AdamScalars& scalars) {
  return scalars.decoupled ? update_blocks<Isa, Gradient, Weight, true>(tile, scalars)
                           : update_blocks<Isa, Gradient, Weight, false>(tile, scalars);
}

template <class Isa, class Gradient, class T>
std::int64_t with_16_bit_weight(const AdamTile& tile, const AdamScalars& scalars) {
  if constexpr (Isa::lanes > 1) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(tile.weight) % (Isa::lanes * sizeof(T)) == 0;
    if (aligned && tile.n >= kStreamElements) {
      const std::int64_t done = with_weight<Isa, Gradient, Streamed<T>>(tile, scalars);
      Isa::fence();  // streamed stores are otherwise not ordered before the caller's next store
      return done;
    }
  }
  return with_weight<Isa, Gradient, Stored<T>>(tile, scalars);
}

template <class Isa, class Gradient>
std::int64_t with_gradient(const AdamTile& tile, const AdamScalars& scalars) {
  if (tile.weight == nullptr) return with_weight<Isa, Gradient, Dropped>(tile, scalars);
  switch (tile.weight_dtype) {
    case DType::f32: return with_weight<Isa, Gradient, Stored<float>>(tile, scalars);
    case DType::bf16: return with_16_bit_weight<Isa, Gradient, bf16>(tile, scalars);
    case DType::f16: return with_16_bit_weight<Isa, Gradient, f16>(tile, scalars);
  }
  __builtin_unreachable();
}

// What every instruction-set file calls from its entry point.
template <class Isa>
std::int64_t update(const AdamTile& tile, const AdamScalars& scalars) {
  switch (tile.gradient_dtype) {
    case DType::f32: return with_gradient<Isa, float>(tile, scalars);
    case DType::bf16: return with_gradient<Isa, bf16>(tile, scalars);
    case DType::f16: return with_gradient<Isa, f16>(tile, scalars);
  }
  __builtin_unreachable();
}

}  // namespace
}  // namespace spillway::cpu_adam
