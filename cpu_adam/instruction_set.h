// The list of instruction sets the update is built for, and the one entry point each of them has.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "spillway/cpu_adam.h"
#include "updates.h"

namespace spillway::cpu_adam {

struct InstructionSet {
  std::string_view name;
  bool (*usable)();  // on this CPU and under this operating system
  // Updates the first elements of the tile, a multiple of 16 of them and at most 15 fewer than all, and
  // returns how many. The last entry of the list, "scalar", updates all.
  std::int64_t (*update)(const AdamTile& tile, const AdamScalars& scalars);
};

// Best first; "scalar", usable everywhere, is last.
std::span<const InstructionSet> instruction_sets();

}  // namespace spillway::cpu_adam
