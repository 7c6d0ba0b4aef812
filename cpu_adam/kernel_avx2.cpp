// The update eight lanes at a time. Built with -mavx2 -mf16c; no fused operation is used, so not with -mfma. See kernel.h on
// linkage.
#include <immintrin.h>

#include "kernel.h"
#include "xsimd_isa.h"

namespace spillway::cpu_adam {
namespace {
struct Avx2Arch : xsimd::avx2 {};
}  // namespace
}  // namespace spillway::cpu_adam

SPILLWAY_XSIMD_REGISTERS(spillway::cpu_adam::Avx2Arch, __m256, __m256d, __m256i, __m256i, __m256i, __m256i)

namespace spillway::cpu_adam {
namespace {

struct Avx2 : XsimdIsa<Avx2Arch> {
  using Half = __m128i;
  using XsimdIsa::load;
  using XsimdIsa::store;

  static Half load(const std::uint16_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
  static void store(std::uint16_t* to, Half x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x); }
  static void stream(std::uint16_t* to, Half x) { _mm_stream_si128(reinterpret_cast<__m128i*>(to), x); }
  static void fence() { _mm_sfence(); }

  static F load_signed(const std::uint8_t* from) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_bytes(from))); }
  static F load_unsigned(const std::uint8_t* from) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_bytes(from))); }
  static void store_bytes(std::uint8_t* to, U x) {
    const __m128i halves = narrow(x & U(0xffu));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(halves, halves));
  }

  static U widen(Half x) { return _mm256_cvtepu16_epi32(x); }
  static Half narrow(U x) { return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)); }
  static F from_f16(Half x) { return _mm256_cvtph_ps(x); }
  static Half to_f16(F x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
  static Half to_bf16(F x) { return narrow(nearest_bf16<Avx2>(x)); }

  static void add_squares(double* sums, F x) {
    add_squares(sums, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    add_squares(sums + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
  }

 private:
  static __m128i load_bytes(const std::uint8_t* from) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)); }
  static void add_squares(double* sums, __m256d x) {
    _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), _mm256_mul_pd(x, x)));
  }
};

}  // namespace

const Kernels& avx2_kernels() { return kKernels<Avx2>; }

}  // namespace spillway::cpu_adam
