// The list on x86-64. __builtin_cpu_supports() also asks whether the operating system saves the registers.
#include "isa.h"

namespace spillway::cpu_adam {

std::span<const Isa> isas() {
  static constexpr Isa kList[] = {
      {"avx512bf16", [] { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16"); }, avx512bf16_kernels},
      {"avx512", [] { return __builtin_cpu_supports("avx512f") != 0; }, avx512_kernels},
      {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }, avx2_kernels},
      {"scalar", [] { return true; }, scalar_kernels},
  };
  return kList;
}

}  // namespace spillway::cpu_adam
