// The update sixteen lanes at a time. Built with -mavx512f, the foundation subset, which is all it needs;
// see adam_kernel.h on linkage.
#include <immintrin.h>
#include <xsimd/xsimd.hpp>

#include "adam_kernel.h"

namespace spillway::cpu_adam {
namespace {
struct Avx512Arch : xsimd::avx512f {};
}  // namespace
}  // namespace spillway::cpu_adam

// Not xsimd's alias macro: that would inherit members of a type with external linkage. xsimd's overload sets
// name the vector of doubles too.
namespace xsimd::types {
XSIMD_DECLARE_SIMD_REGISTER(float, spillway::cpu_adam::Avx512Arch, __m512);
XSIMD_DECLARE_SIMD_REGISTER(double, spillway::cpu_adam::Avx512Arch, __m512d);
}

namespace spillway::cpu_adam {
namespace {

struct Avx512 {
  using Vector = xsimd::batch<float, Avx512Arch>;
  static constexpr int lanes = 16;

  static Vector load(const float* from) { return Vector::load_unaligned(from); }
  static Vector load(const bf16* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_bit(from)), 16));
  }
  static Vector load(const f16* from) { return _mm512_cvtph_ps(load_16_bit(from)); }

  static void store(float* to, Vector x) { x.store_unaligned(to); }
  template <class T>
  static void store(T* to, Vector x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded(to, x));
  }
  template <class T>
  static void stream(T* to, Vector x) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), rounded(to, x));
  }
  static void fence() { _mm_sfence(); }

  static Vector sqrt(Vector x) { return xsimd::sqrt(x); }

 private:
  static __m256i load_16_bit(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

  // The lanes rounded to the type of the first argument, as from_float() does.
  static __m256i rounded(const f16*, __m512 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
  static __m256i rounded(const bf16*, __m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i tie_to_even = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i nearest = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), tie_to_even), 16);
    const __m512i quiet_nan = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(nearest, is_nan, quiet_nan));
  }
};

}  // namespace

std::int64_t update_avx512(const AdamTile& tile, const AdamScalars& scalars) { return update<Avx512>(tile, scalars); }

}  // namespace spillway::cpu_adam
