// The instruction sets that the kernels are built for, and the one in use.
#pragma once

#include <span>
#include <string_view>

#include "kernels.h"

namespace spillway::cpu_adam {

struct Isa {
  std::string_view name;
  bool (*usable)();  // on this CPU and under this operating system
  const Kernels& (*kernels)();
};

// Best first; "scalar", usable everywhere, is last. One list for each family of CPUs.
std::span<const Isa> isas();

// The usable one called `name`. Throws ConfigError if there is none; `origin` says where the name came from.
const Isa& find_isa(std::string_view name, std::string_view origin);

// See active_isa().
const Isa& current_isa();

}  // namespace spillway::cpu_adam
