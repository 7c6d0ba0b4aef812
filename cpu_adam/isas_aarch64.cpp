// The list on 64-bit Arm.
#include "isa.h"

namespace spillway::cpu_adam {

std::span<const Isa> isas() {
  static constexpr Isa kList[] = {
      {"neon", [] { return true; }, neon_kernels},
      {"scalar", [] { return true; }, scalar_kernels},
  };
  return kList;
}

}  // namespace spillway::cpu_adam
