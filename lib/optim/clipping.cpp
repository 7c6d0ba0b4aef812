#include "optim/clipping.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace spillway {

double global_norm(std::span<const double> square_sums) {
  double sum = 0.0;
  for (const double square_sum : square_sums) sum += square_sum;
  return std::sqrt(sum);
}

double clip_factor(double norm, double max_norm) {
  assert(std::isfinite(norm) && norm >= 0.0 && max_norm >= 0.0);
  if (max_norm == 0.0) return 1.0;
  return 1.0 / std::max(1.0, (norm + 1e-6) / max_norm);
}

float gradient_scale(double scaled_norm, double loss_scale, double max_norm) {
  return static_cast<float>(clip_factor(scaled_norm / loss_scale, max_norm) / loss_scale);
}

}  // namespace spillway
