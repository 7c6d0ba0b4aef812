// The list on processors that no vector kernel is written for.
#include "instruction_set.h"

namespace spillway::cpu_adam {

std::span<const InstructionSet> instruction_sets() {
  static constexpr InstructionSet kList[] = {
      {"scalar", [] { return true; }, update_scalar},
  };
  return kList;
}

}  // namespace spillway::cpu_adam
