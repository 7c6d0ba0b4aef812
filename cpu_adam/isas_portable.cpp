// The list on processors that no vector kernel is written for.
#include "isa.h"

namespace spillway::cpu_adam {

std::span<const Isa> isas() {
  static constexpr Isa kList[] = {
      {"scalar", [] { return true; }, scalar_kernels},
  };
  return kList;
}

}  // namespace spillway::cpu_adam
