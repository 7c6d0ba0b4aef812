// The list on x86-64. __builtin_cpu_supports() also asks whether the operating system saves the registers.
#include "instruction_set.h"

namespace spillway::cpu_adam {

std::span<const InstructionSet> instruction_sets() {
  static constexpr InstructionSet kList[] = {
      {"avx512", [] { return __builtin_cpu_supports("avx512f") != 0; }, update_avx512},
      {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }, update_avx2},
      {"scalar", [] { return true; }, update_scalar},
  };
  return kList;
}

}  // namespace spillway::cpu_adam
