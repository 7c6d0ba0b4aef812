// The update without any assumption on the CPU: the reference of the other instruction sets, and what they
// leave over at the end of a tile. Built with the project's baseline flags.
#include <cmath>

#include "adam_kernel.h"

namespace spillway::cpu_adam {
namespace {

struct Scalar {
  using Vector = float;
  static constexpr int lanes = 1;

  template <class T>
  static float load(const T* from) {
    return to_float(*from);
  }
  template <class T>
  static void store(T* to, float x) {
    *to = from_float<T>(x);
  }
  static float sqrt(float x) { return std::sqrt(x); }
};

}  // namespace

std::int64_t update_scalar(const AdamTile& tile, const AdamScalars& scalars) { return update<Scalar>(tile, scalars); }

}  // namespace spillway::cpu_adam
