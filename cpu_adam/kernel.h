// The update of a piece: the one kernel text, included by one small .cpp per instruction set.
//
// Design
//
// One pass. With Adam and 16-bit gradients, an element's state, gradient and weight are 28 bytes of traffic against about
// fifteen operations, so memory bandwidth is the limit. Unscaling, clipping, weight decay, statistics and the conversions on
// both sides ride along for free; as separate passes they would cost nearly three times the whole update.
//
// Same bits everywhere. The text is a template over an instruction set `Isa`, which supplies vectors of `lanes` elements,
//   F     floats, U  unsigned 32-bit integers, both with operators, and Half  16-bit integers,
// and what they do not say: loads, stores, conversions, bits, select, sqrt, division. Each lane performs the same sequence of
// single IEEE operations; sqrt and division are correctly rounded on every instruction set, and no multiplication is fused
// with an addition, although AVX2 machines could: a fused operation on a CPU without the instruction is a library call a
// hundred times slower. (The project builds with -ffp-contract=off, so the compiler does not fuse either.) An element's
// result depends on nothing but that element, its position, and its block of moments if those have 8 bits.
//
// Whole blocks. A piece is a multiple of 16 elements, or of a block of 8-bit moments; the caller puts what is left at the
// end of a tile into a block of its own. Same bits, no masks, and no access past the end.
//
// Small code. The text is instantiated for each kind and each format of its moments. Everything else that a call fixes
// (dtypes, split or whole master, statistics, streaming) is switched on for each block of 16, always the same way: that is
// predicted, hides behind memory, and saves the product of all those choices.
//
// 8-bit moments. A block is decoded into a buffer on the stack, updated there in f32, and encoded again when its largest
// magnitude is known.
//
// Linkage. The .cpp files are compiled with flags that not every CPU honours. An inline function emitted by one of them as
// a weak symbol could be the copy that the linker keeps for the whole program, which would then crash an older CPU far from
// here. Therefore everything in this file and in the .cpp files has internal linkage; the xsimd architecture tag is a type of
// an anonymous namespace, which gives internal linkage to every xsimd template instantiated with it; and no inline function of
// other headers is called from a vector kernel. The only external symbol of such a file is its entry point; a test looks.
//
// Memory. Each block prefetches 2 KiB ahead in each input. The 16-bit weights are not read again soon by this core, so in large
// tiles they are written past the cache, which saves reading the lines first. master and the moments are in the cache already
// when they are written, and streaming them is a loss.
#pragma once

#include "kernels.h"
#include "moment_codes.h"
#include "rounding.h"
#include "update_rules.h"

namespace spillway::cpu_adam {
namespace {

constexpr std::uintptr_t kPrefetchBytes = 2048;

SPILLWAY_INLINE void prefetch_ahead(const void* address) {
  // Past the end of an array this is a hint about memory that is never read, so no pointer is formed to it.
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(address) + kPrefetchBytes));
}

// A block, as vectors.
template <class Isa>
struct Block {
  static constexpr int vectors = static_cast<int>(kBlock) / Isa::lanes;
  typename Isa::F at[vectors];
};

template <class Isa>
SPILLWAY_INLINE typename Isa::F from_bf16(const std::uint16_t* from) {
  return Isa::from_bits(Isa::widen(Isa::load(from)) << 16);
}

template <class Isa>
SPILLWAY_INLINE Block<Isa> load_gradient(const void* gradient, DType dtype, std::int64_t i) {
  Block<Isa> block;
  const std::uint16_t* const halves = static_cast<const std::uint16_t*>(gradient) + i;
  prefetch_ahead(static_cast<const char*>(gradient) + (dtype == DType::f32 ? 4 : 2) * i);
  if (dtype == DType::f32) {
    for (int v = 0; v < block.vectors; ++v) block.at[v] = Isa::load(static_cast<const float*>(gradient) + i + v * Isa::lanes);
  } else if (dtype == DType::bf16) {
    for (int v = 0; v < block.vectors; ++v) block.at[v] = from_bf16<Isa>(halves + v * Isa::lanes);
  } else {
    for (int v = 0; v < block.vectors; ++v) block.at[v] = Isa::from_f16(Isa::load(halves + v * Isa::lanes));
  }
  return block;
}

template <class Isa>
SPILLWAY_INLINE void add_squares(const Block<Isa>& block, double* sums) {
  for (int v = 0; v < block.vectors; ++v) Isa::add_squares(sums + v * Isa::lanes, block.at[v]);
}

template <class Isa>
SPILLWAY_INLINE Block<Isa> load_master(const Piece& piece, std::int64_t i) {
  using U = typename Isa::U;
  Block<Isa> block;
  if (piece.master != nullptr) {
    prefetch_ahead(piece.master + i);
    for (int v = 0; v < block.vectors; ++v) block.at[v] = Isa::load(piece.master + i + v * Isa::lanes);
    return block;
  }
  const std::uint16_t* const upper = static_cast<const std::uint16_t*>(piece.weight) + i;
  prefetch_ahead(upper);
  prefetch_ahead(piece.master_low + i);
  for (int v = 0; v < block.vectors; ++v) {
    const U low = Isa::widen(Isa::load(piece.master_low + i + v * Isa::lanes));
    const U high = Isa::widen(Isa::load(upper + v * Isa::lanes)) - (low >> 15);  // a low half is signed
    block.at[v] = Isa::from_bits((high << 16) | low);
  }
  return block;
}

template <class Isa>
SPILLWAY_INLINE void store_split(const Piece& piece, std::int64_t i, const Block<Isa>& master) {
  using U = typename Isa::U;
  for (int v = 0; v < master.vectors; ++v) {
    const auto x = master.at[v];
    const U bits = Isa::bits(Isa::select(x == x, x, Isa::from_bits(U(0x7fc00000u))));
    Isa::store(static_cast<std::uint16_t*>(piece.weight) + i + v * Isa::lanes, Isa::narrow((bits + U(0x8000u)) >> 16));
    Isa::store(piece.master_low + i + v * Isa::lanes, Isa::narrow(bits & U(0xffffu)));
  }
}

template <class Isa>
SPILLWAY_INLINE void store_weight(const Piece& piece, std::int64_t i, const Block<Isa>& master) {
  if (piece.weight == nullptr) return;
  if (piece.weight_dtype == DType::f32) {
    for (int v = 0; v < master.vectors; ++v) Isa::store(static_cast<float*>(piece.weight) + i + v * Isa::lanes, master.at[v]);
    return;
  }
  std::uint16_t* const weight = static_cast<std::uint16_t*>(piece.weight) + i;
  for (int v = 0; v < master.vectors; ++v) {
    const auto half = piece.weight_dtype == DType::bf16 ? Isa::to_bf16(master.at[v]) : Isa::to_f16(master.at[v]);
    if (piece.stream_weight) {
      Isa::stream(weight + v * Isa::lanes, half);
    } else {
      Isa::store(weight + v * Isa::lanes, half);
    }
  }
}

template <class Isa>
SPILLWAY_INLINE void store_master(const Piece& piece, std::int64_t i, const Block<Isa>& master) {
  if (piece.master == nullptr) {
    store_split<Isa>(piece, i, master);
    return;
  }
  for (int v = 0; v < master.vectors; ++v) Isa::store(piece.master + i + v * Isa::lanes, master.at[v]);
  store_weight<Isa>(piece, i, master);
}

// One moment's f32 of a block of kMomentBlock, if moments have 8 bits.
struct alignas(64) Decoded {
  float values[kMomentBlock];
};

template <class Isa, MomentFormat format>
SPILLWAY_INLINE typename Isa::F load_moment(const void* values, std::int64_t i) {
  if constexpr (format == MomentFormat::bf16) return from_bf16<Isa>(static_cast<const std::uint16_t*>(values) + i);
  else return Isa::load(static_cast<const float*>(values) + i);
}

// `random`: 16 bits.
template <class Isa, MomentFormat format>
SPILLWAY_INLINE void store_moment(void* values, std::int64_t i, typename Isa::F x, typename Isa::U random) {
  if constexpr (format == MomentFormat::bf16) {
    Isa::store(static_cast<std::uint16_t*>(values) + i, Isa::narrow(stochastic_bf16<Isa>(x, random)));
  } else {
    Isa::store(static_cast<float*>(values) + i, x);
  }
}

// The update of one piece.
template <class Isa, OptimizerKind kind, MomentFormat format>
class Update {
 public:
  using F = typename Isa::F;
  using U = typename Isa::U;
  using Rule = UpdateRule<kind>;

  Update(const Piece& piece, const OptimizerScalars& scalars) : piece_(piece), constants_(scalars), random_(scalars.keys) {}

  SPILLWAY_INLINE void run() const {
    if constexpr (format == MomentFormat::block8) {
      for (std::int64_t i = 0; i < piece_.n; i += kMomentBlock) update_moment_block(i);
    } else {
      for (std::int64_t i = 0; i < piece_.n; i += kBlock) update_block(i, piece_.moments[0], piece_.moments[1], i);
    }
    if (piece_.stream_weight) Isa::fence();  // streamed stores are otherwise not ordered before the caller's next store
  }

 private:
  // Elements i to i + 15, whose moments are elements j to j + 15 of `first` and `second`.
  SPILLWAY_INLINE void update_block(std::int64_t i, void* first, void* second, std::int64_t j) const {
    constexpr std::int64_t moment_bytes = format == MomentFormat::f32 ? 4 : format == MomentFormat::bf16 ? 2 : 1;
    if constexpr (Rule::moments > 0) prefetch_ahead(static_cast<const char*>(piece_.moments[0]) + moment_bytes * i);
    if constexpr (Rule::moments > 1) prefetch_ahead(static_cast<const char*>(piece_.moments[1]) + moment_bytes * i);
    const Block<Isa> gradient = load_gradient<Isa>(piece_.gradient, piece_.gradient_dtype, i);
    if (piece_.square_sums != nullptr) add_squares<Isa>(gradient, piece_.square_sums);
    Block<Isa> master = load_master<Isa>(piece_, i);
    for (int v = 0; v < master.vectors; ++v) {
      const std::int64_t at = j + v * Isa::lanes;
      Elements<F> e{master.at[v], constants_.gradient_scale * gradient.at[v], F(0.0f), F(0.0f)};
      if constexpr (Rule::moments > 0) e.first = load_moment<Isa, format>(first, at);
      if constexpr (Rule::moments > 1) e.second = load_moment<Isa, format>(second, at);
      Rule::template apply<Isa>(constants_, e);
      master.at[v] = e.master;
      U random(0u);
      if constexpr (format == MomentFormat::bf16) random = random_.at(piece_.position + static_cast<std::uint32_t>(at));
      if constexpr (Rule::moments > 0) store_moment<Isa, format>(first, at, e.first, random_.of_moment(0, random));
      if constexpr (Rule::moments > 1) store_moment<Isa, format>(second, at, e.second, random_.of_moment(1, random));
    }
    store_master<Isa>(piece_, i, master);
  }

  SPILLWAY_INLINE void update_moment_block(std::int64_t i) const {
    Decoded first, second;
    if constexpr (Rule::moments > 0) decode_block<Isa, Rule::laws[0]>(codes(0, i), *scale(0, i), first.values, kMomentBlock);
    if constexpr (Rule::moments > 1) decode_block<Isa, Rule::laws[1]>(codes(1, i), *scale(1, i), second.values, kMomentBlock);
    for (std::int64_t j = 0; j < kMomentBlock; j += kBlock) update_block(i + j, first.values, second.values, j);
    encode_block(i, first.values, second.values);
  }

  SPILLWAY_INLINE void encode_block(std::int64_t i, float* first, float* second) const {
    BlockScale s[2] = {};
    if constexpr (Rule::moments > 0) s[0] = scale_block<Isa, Rule::laws[0]>(first, kMomentBlock);
    if constexpr (Rule::moments > 1) s[1] = scale_block<Isa, Rule::laws[1]>(second, kMomentBlock);
    for (int m = 0; m < Rule::moments; ++m) *scale(m, i) = s[m].byte;
    for (std::int64_t j = 0; j < kMomentBlock; j += Isa::lanes) {
      const U random = random_.at(piece_.position + static_cast<std::uint32_t>(i + j));
      if constexpr (Rule::moments > 0) store_codes<0>(i + j, Isa::load(first + j), random, s[0]);
      if constexpr (Rule::moments > 1) store_codes<1>(i + j, Isa::load(second + j), random, s[1]);
    }
  }

  template <int moment>
  SPILLWAY_INLINE void store_codes(std::int64_t i, F x, U random, const BlockScale& s) const {
    const F u = Isa::to_float(random_.of_moment(moment, random)) * F(0x1p-16f);
    Isa::store_bytes(codes(moment, i), encode<Isa, Rule::laws[moment]>(x, u, F(s.inverse), F(s.largest_code)));
  }

  std::uint8_t* codes(int moment, std::int64_t i) const { return static_cast<std::uint8_t*>(piece_.moments[moment]) + i; }
  std::uint8_t* scale(int moment, std::int64_t i) const { return piece_.scales[moment] + i / kMomentBlock; }

  const Piece piece_;  // a copy, which no store through a pointer can change
  const Constants<F> constants_;
  const RandomBits<Isa> random_;
};

template <class Isa, OptimizerKind kind, MomentFormat format>
__attribute__((noinline)) void update_as(const Piece& piece, const OptimizerScalars& scalars) {
  Update<Isa, kind, format>(piece, scalars).run();
}

template <class Isa, OptimizerKind kind>
void update_kind(const Piece& piece, const OptimizerScalars& scalars) {
  if constexpr (UpdateRule<kind>::moments == 0) {
    update_as<Isa, kind, MomentFormat::f32>(piece, scalars);
  } else {
    switch (piece.moment_format) {
      case MomentFormat::f32: return update_as<Isa, kind, MomentFormat::f32>(piece, scalars);
      case MomentFormat::bf16: return update_as<Isa, kind, MomentFormat::bf16>(piece, scalars);
      case MomentFormat::block8: return update_as<Isa, kind, MomentFormat::block8>(piece, scalars);
    }
  }
}

template <class Isa>
void update(const Piece& piece, const OptimizerScalars& scalars) {
  switch (piece.kind) {
    case OptimizerKind::adam: return update_kind<Isa, OptimizerKind::adam>(piece, scalars);
    case OptimizerKind::adagrad: return update_kind<Isa, OptimizerKind::adagrad>(piece, scalars);
    case OptimizerKind::lion: return update_kind<Isa, OptimizerKind::lion>(piece, scalars);
    case OptimizerKind::sgd: return update_kind<Isa, OptimizerKind::sgd>(piece, scalars);
    case OptimizerKind::sgd_momentum: return update_kind<Isa, OptimizerKind::sgd_momentum>(piece, scalars);
  }
}

template <class Isa>
void add_squares_of(const void* gradient, DType dtype, std::int64_t n, double* square_sums) {
  for (std::int64_t i = 0; i < n; i += kBlock) add_squares<Isa>(load_gradient<Isa>(gradient, dtype, i), square_sums);
}

// What every instruction-set file returns from its entry point.
template <class Isa>
constexpr Kernels kKernels{update<Isa>, add_squares_of<Isa>};

}  // namespace
}  // namespace spillway::cpu_adam
