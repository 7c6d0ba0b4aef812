#include "report/nice_ticks.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "report/console.h"

namespace spillway {

namespace {

// The smallest 1, 2 or 5 times a power of ten that is not below `raw`.
double round_step_up(double raw) {
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1.0 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

}  // namespace

Ticks covering_ticks(double low, double high, int target, double min_step) {
  if (low == high) {
    const double margin = std::max(std::fabs(low) * 0.1, min_step > 0.0 ? min_step : 1e-3);
    low -= margin;
    high += margin;
  }
  Ticks ticks;
  ticks.step = std::max(min_step, round_step_up((high - low) / target));
  // Rounding of the quotient must not add a tick before or behind an end that is itself a multiple.
  const double first = std::floor(low / ticks.step + 1e-9), last = std::ceil(high / ticks.step - 1e-9);
  for (double i = first; i <= last; ++i) ticks.values.push_back(i * ticks.step);
  return ticks;
}

Ticks inner_ticks(double low, double high, int target, double min_step) {
  Ticks ticks = covering_ticks(low, high, target, min_step);
  const double slack = 1e-9 * ticks.step;
  std::erase_if(ticks.values, [&](double value) { return value < low - slack || value > high + slack; });
  return ticks;
}

std::string tick_label(double value, double step) {
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  if (decimals == 0) return with_thousands(std::llround(value));
  return fmt::format("{:.{}f}", value == 0.0 ? 0.0 : value, decimals);
}

}  // namespace spillway
