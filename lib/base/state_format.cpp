#include "base/state_format.h"

namespace spillway {

std::string text_of(const StateFormat& format) {
  const std::string kind(traits_of(format.kind).name);
  if (format.num_moments() == 0) return kind + " without moments";
  return kind + " with " + std::string(name_of(format.moments)) + " moments";
}

double state_bytes_per_parameter(const StateFormat& format) {
  constexpr std::int64_t n = kMomentBlock;
  return static_cast<double>(state_traffic(format, n)) / 2.0 / n;
}

}  // namespace spillway
