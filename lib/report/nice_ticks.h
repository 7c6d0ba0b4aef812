// Axis ticks at round numbers.
#pragma once

#include <string>
#include <vector>

namespace spillway {

struct Ticks {
  std::vector<double> values;  // ascending multiples of `step`
  double step = 1.0;           // 1, 2 or 5 times a power of ten
};

// About `target` ticks that cover [low, high]: the first at or below low, the last at or above high.
// low <= high, both finite; if they are equal the ticks surround them. min_step: 1 for whole numbers.
Ticks covering_ticks(double low, double high, int target, double min_step = 0.0);

// Only those of the above that lie within [low, high].
Ticks inner_ticks(double low, double high, int target, double min_step = 0.0);

// "2.5", "12,000": with the decimals that the step needs, and no more.
std::string tick_label(double value, double step);

}  // namespace spillway
