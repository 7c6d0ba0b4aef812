#include "support/traffic.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace spillway::bench {

namespace {

// What the compiler makes of it for any CPU.
template <bool k16>
void plain_pass(const TrafficArrays& arrays, std::int64_t first, std::int64_t n) {
  const auto [p, m, v] = arrays.state;
  for (std::int64_t i = first; i < first + n; ++i) {
    std::uint32_t bits;
    if constexpr (k16) {
      bits = static_cast<const std::uint16_t*>(arrays.gradient)[i];
      static_cast<std::uint16_t*>(arrays.weight)[i] = static_cast<std::uint16_t>(bits);
    } else {
      bits = static_cast<const std::uint32_t*>(arrays.gradient)[i];
    }
    p[i] ^= bits;
    m[i] ^= bits;
    v[i] ^= bits;
  }
}

#if defined(__x86_64__)

enum class Prefetch : std::uint8_t { to_read, to_write };

// One cache line of each array at a time, all read before any is written: addresses that differ by a multiple of 4 KiB
// look alike to a load that follows a store. kAhead: lines to prefetch ahead; 0: leave it to the hardware.
template <bool k16, int kAhead, Prefetch kFor, bool kStream>
[[gnu::target("avx512f,prfchw")]] void avx512_lines(const TrafficArrays& arrays, std::int64_t first, std::int64_t n) {
  constexpr std::int64_t kStep = k16 ? 32 : 16;
  for (std::int64_t i = first; i < first + n; i += kStep) {
    const std::byte* gradient = static_cast<const std::byte*>(arrays.gradient) + i * (k16 ? 2 : 4);
    if constexpr (kAhead != 0) __builtin_prefetch(gradient + kAhead * 64);
    const __m512i bits = _mm512_load_si512(gradient);
    for (std::int64_t j = i; j < i + kStep; j += 16) {
      __m512i values[3];
      for (std::size_t a = 0; a < 3; ++a) {
        if constexpr (kAhead != 0) __builtin_prefetch(arrays.state[a] + j + kAhead * 16, kFor == Prefetch::to_write ? 1 : 0);
        values[a] = _mm512_load_si512(arrays.state[a] + j);
      }
      for (std::size_t a = 0; a < 3; ++a) _mm512_store_si512(arrays.state[a] + j, _mm512_xor_si512(values[a], bits));
    }
    if constexpr (k16) {
      std::uint16_t* weight = static_cast<std::uint16_t*>(arrays.weight) + i;
      kStream ? _mm512_stream_si512(reinterpret_cast<__m512i*>(weight), bits) : _mm512_store_si512(weight, bits);
    }
  }
  if constexpr (kStream) _mm_sfence();
}

template <bool k16, int kAhead, Prefetch kFor, bool kStream>
[[gnu::target("avx2,prfchw")]] void avx2_lines(const TrafficArrays& arrays, std::int64_t first, std::int64_t n) {
  constexpr std::int64_t kStep = k16 ? 32 : 16;
  for (std::int64_t i = first; i < first + n; i += kStep) {
    const std::byte* gradient = static_cast<const std::byte*>(arrays.gradient) + i * (k16 ? 2 : 4);
    if constexpr (kAhead != 0) __builtin_prefetch(gradient + kAhead * 64);
    const __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(gradient));
    const __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(gradient) + 1);
    for (std::int64_t j = i; j < i + kStep; j += 16) {
      __m256i values[3][2];
      for (std::size_t a = 0; a < 3; ++a) {
        if constexpr (kAhead != 0) __builtin_prefetch(arrays.state[a] + j + kAhead * 16, kFor == Prefetch::to_write ? 1 : 0);
        for (int half = 0; half < 2; ++half) values[a][half] = _mm256_load_si256(reinterpret_cast<const __m256i*>(arrays.state[a] + j) + half);
      }
      for (std::size_t a = 0; a < 3; ++a) {
        auto* line = reinterpret_cast<__m256i*>(arrays.state[a] + j);
        _mm256_store_si256(line, _mm256_xor_si256(values[a][0], low));
        _mm256_store_si256(line + 1, _mm256_xor_si256(values[a][1], high));
      }
    }
    if constexpr (k16) {
      auto* weight = reinterpret_cast<__m256i*>(static_cast<std::uint16_t*>(arrays.weight) + i);
      kStream ? _mm256_stream_si256(weight, low) : _mm256_store_si256(weight, low);
      kStream ? _mm256_stream_si256(weight + 1, high) : _mm256_store_si256(weight + 1, high);
    }
  }
  if constexpr (kStream) _mm_sfence();
}

template <bool k16>
void add_vector_kernels(std::vector<TrafficKernel>& kernels) {
  constexpr bool kStream = k16;  // the weight is the only array that is written and not read
  if (__builtin_cpu_supports("avx2")) {
    kernels.push_back({"avx2", avx2_lines<k16, 0, Prefetch::to_read, kStream>});
    kernels.push_back({"avx2, 8 lines ahead", avx2_lines<k16, 8, Prefetch::to_read, kStream>});
    kernels.push_back({"avx2, 32 lines ahead", avx2_lines<k16, 32, Prefetch::to_read, kStream>});
    kernels.push_back({"avx2, 32 lines ahead to write", avx2_lines<k16, 32, Prefetch::to_write, kStream>});
  }
  if (__builtin_cpu_supports("avx512f")) {
    kernels.push_back({"avx512", avx512_lines<k16, 0, Prefetch::to_read, kStream>});
    kernels.push_back({"avx512, 8 lines ahead", avx512_lines<k16, 8, Prefetch::to_read, kStream>});
    kernels.push_back({"avx512, 32 lines ahead", avx512_lines<k16, 32, Prefetch::to_read, kStream>});
    kernels.push_back({"avx512, 32 lines ahead to write", avx512_lines<k16, 32, Prefetch::to_write, kStream>});
    if constexpr (k16) kernels.push_back({"avx512, weight through the cache", avx512_lines<k16, 0, Prefetch::to_read, false>});
  }
}

#endif

}  // namespace

std::vector<TrafficKernel> traffic_kernels(bool sixteen_bit) {
  std::vector<TrafficKernel> kernels = {{"plain", sixteen_bit ? plain_pass<true> : plain_pass<false>}};
#if defined(__x86_64__)
  sixteen_bit ? add_vector_kernels<true>(kernels) : add_vector_kernels<false>(kernels);
#endif
  return kernels;
}

}  // namespace spillway::bench
