// The loss curve as a picture: one self-contained SVG, light background, no script, no font of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct LossPoint {
  std::int64_t step = 0;
  double loss = 0.0;  // one that is not finite leaves a gap
};

// A level worth comparing with, drawn dashed across the plot: "unigram entropy of the text".
struct LossReference {
  std::string label = {};
  double loss = 0.0;
};

struct LossCurve {
  std::string title = {};
  std::string subtitle = {};          // a line of small print; may be empty
  std::vector<LossPoint> train = {};  // ascending steps
  std::vector<LossPoint> eval = {};   // ascending steps
  std::vector<LossReference> references = {};
};

// However long the run, the text stays small: the train line is reduced to the extremes of each pixel column.
std::string loss_curve_svg(const LossCurve& curve);

// The same into a file that appears whole or not at all. Throws IoError.
void write_loss_curve(const std::string& path, const LossCurve& curve);

// Moving average over about a twentieth of the points: centred, narrow at the steep beginning, one-sided at the
// end. Non-finite losses are left out. Exposed for its test.
std::vector<LossPoint> smoothed(const std::vector<LossPoint>& points);

}  // namespace spillway
