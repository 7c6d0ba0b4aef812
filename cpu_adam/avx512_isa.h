// The Isa of kernel.h with sixteen lanes, by what all CPUs with AVX-512 have: the foundation subset. See kernel.h on linkage.
#pragma once

#include <immintrin.h>

#include "kernel.h"
#include "xsimd_isa.h"

namespace spillway::cpu_adam {
namespace {
struct Avx512Arch : xsimd::avx512f {};

// What xsimd wants of a mask. Of 32-bit lanes, since no others are compared.
struct Avx512Mask {
  using register_type = __mmask16;
  Avx512Mask() = default;
  Avx512Mask(register_type mask) : data(mask) {}
  operator register_type() const { return data; }
  register_type data;
};
}  // namespace
}  // namespace spillway::cpu_adam

template <class T>
struct xsimd::types::get_bool_simd_register<T, spillway::cpu_adam::Avx512Arch> {
  using type = spillway::cpu_adam::Avx512Mask;
};
SPILLWAY_XSIMD_REGISTERS(spillway::cpu_adam::Avx512Arch, __m512, __m512d, __m512i, __m512i, __m512i, __m512i)

namespace spillway::cpu_adam {
namespace {

// Of ours, since xsimd's are of use only if the compiler inlines them: for other widths they are functions for AVX2, which
// have external linkage.
struct Avx512Integers {
  explicit Avx512Integers(std::uint32_t x) : data(_mm512_set1_epi32(static_cast<int>(x))) {}
  Avx512Integers(__m512i x) : data(x) {}
  operator __m512i() const { return data; }
  __m512i data;
};
inline Avx512Integers operator+(Avx512Integers x, Avx512Integers y) { return _mm512_add_epi32(x, y); }
inline Avx512Integers operator-(Avx512Integers x, Avx512Integers y) { return _mm512_sub_epi32(x, y); }
inline Avx512Integers operator*(Avx512Integers x, Avx512Integers y) { return _mm512_mullo_epi32(x, y); }
inline Avx512Integers operator&(Avx512Integers x, Avx512Integers y) { return _mm512_and_si512(x, y); }
inline Avx512Integers operator|(Avx512Integers x, Avx512Integers y) { return _mm512_or_si512(x, y); }
inline Avx512Integers operator^(Avx512Integers x, Avx512Integers y) { return _mm512_xor_si512(x, y); }
inline Avx512Integers operator<<(Avx512Integers x, unsigned bits) { return _mm512_sll_epi32(x, _mm_cvtsi32_si128(static_cast<int>(bits))); }
inline Avx512Integers operator>>(Avx512Integers x, unsigned bits) { return _mm512_srl_epi32(x, _mm_cvtsi32_si128(static_cast<int>(bits))); }

struct Avx512 : XsimdFloats<Avx512Arch> {
  using U = Avx512Integers;
  using Half = __m256i;
  using XsimdFloats::load;
  using XsimdFloats::store;

  static U bits(F x) { return _mm512_castps_si512(x); }
  static F from_bits(U x) { return _mm512_castsi512_ps(x); }
  static U truncate(F x) { return _mm512_cvttps_epi32(x); }
  static F to_float(U x) { return _mm512_cvtepi32_ps(x); }
  static U max(U x, U y) { return _mm512_max_epu32(x, y); }
  static std::uint32_t largest(U x) { return _mm512_reduce_max_epu32(x); }
  static U iota() { return _mm512_loadu_si512(kIota); }

  static Half load(const std::uint16_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static void store(std::uint16_t* to, Half x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
  static void stream(std::uint16_t* to, Half x) { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), x); }
  static void fence() { _mm_sfence(); }

  static F load_signed(const std::uint8_t* from) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(from))); }
  static F load_unsigned(const std::uint8_t* from) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_bytes(from))); }
  static void store_bytes(std::uint8_t* to, U x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x)); }

  static U widen(Half x) { return _mm512_cvtepu16_epi32(x); }
  static Half narrow(U x) { return _mm512_cvtepi32_epi16(x); }
  static F from_f16(Half x) { return _mm512_cvtph_ps(x); }
  static Half to_f16(F x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
  static Half to_bf16(F x) { return narrow(nearest_bf16<Avx512>(x)); }

  static void add_squares(double* sums, F x) {
    const __m512i bits = _mm512_castps_si512(x);
    add_squares(sums, _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_castsi512_si256(bits))));
    add_squares(sums + 8, _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_extracti64x4_epi64(bits, 1))));
  }

 private:
  static __m128i load_bytes(const std::uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
  static void add_squares(double* sums, __m512d x) {
    // The square of an f32 is exact, so this is what a multiplication and an addition give.
    _mm512_storeu_pd(sums, _mm512_fmadd_pd(x, x, _mm512_loadu_pd(sums)));
  }
};

}  // namespace
}  // namespace spillway::cpu_adam
