// The update eight lanes at a time. Built with -mavx2 -mf16c; see adam_kernel.h on linkage.
#include <immintrin.h>
#include <xsimd/xsimd.hpp>

#include "adam_kernel.h"

namespace spillway::cpu_adam {
namespace {
struct Avx2Arch : xsimd::avx2 {};
}  // namespace
}  // namespace spillway::cpu_adam

// Not xsimd's alias macro: that would inherit members of a type with external linkage. xsimd's overload sets
// name the vector of doubles too.
namespace xsimd::types {
XSIMD_DECLARE_SIMD_REGISTER(float, spillway::cpu_adam::Avx2Arch, __m256);
XSIMD_DECLARE_SIMD_REGISTER(double, spillway::cpu_adam::Avx2Arch, __m256d);
}

namespace spillway::cpu_adam {
namespace {

struct Avx2 {
  using Vector = xsimd::batch<float, Avx2Arch>;
  static constexpr int lanes = 8;

  static Vector load(const float* from) { return Vector::load_unaligned(from); }
  static Vector load(const bf16* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16_bit(from)), 16));
  }
  static Vector load(const f16* from) { return _mm256_cvtph_ps(load_16_bit(from)); }

  static void store(float* to, Vector x) { x.store_unaligned(to); }
  template <class T>
  static void store(T* to, Vector x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), rounded(to, x));
  }
  template <class T>
  static void stream(T* to, Vector x) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), rounded(to, x));
  }
  static void fence() { _mm_sfence(); }

  static Vector sqrt(Vector x) { return xsimd::sqrt(x); }

 private:
  static __m128i load_16_bit(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

  // The lanes rounded to the type of the first argument, as from_float() does.
  static __m128i rounded(const f16*, __m256 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
  static __m128i rounded(const bf16*, __m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i tie_to_even = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), tie_to_even), 16);
    const __m256i quiet_nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(nearest, quiet_nan, is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
  }
};

}  // namespace

std::int64_t update_avx2(const AdamTile& tile, const AdamScalars& scalars) { return update<Avx2>(tile, scalars); }

}  // namespace spillway::cpu_adam
