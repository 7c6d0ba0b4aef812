#include "report/loss_curve.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>

#include "report/file_output.h"
#include "report/nice_ticks.h"

namespace spillway {

namespace {

constexpr double kWidth = 960.0, kHeight = 540.0;
constexpr double kLeft = 76.0, kRight = 920.0, kTop = 96.0, kBottom = 474.0;  // of the plot
constexpr double kLegend = 78.0;  // its baseline
constexpr std::size_t kFewPoints = 12;  // fewer are drawn as dots, without smoothing

constexpr std::string_view kStyle = R"(<style>
text { font-family: "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; fill: #3b4252; font-size: 14px; }
.title { font-size: 20px; font-weight: 600; fill: #1b1f2a; }
.small { font-size: 13px; fill: #6b7385; }
.grid { stroke: #e6e9ef; stroke-width: 1; }
.axis { stroke: #8d95a5; stroke-width: 1; }
.raw { fill: none; stroke: #8fbce6; stroke-width: 1.1; stroke-linejoin: round; }
.train { fill: none; stroke: #1b66b3; stroke-width: 2.4; stroke-linejoin: round; stroke-linecap: round; }
.dot { fill: #1b66b3; }
.link { fill: none; stroke: #e07a2f; stroke-width: 1.2; stroke-opacity: 0.6; }
.eval { fill: #e07a2f; stroke: #ffffff; stroke-width: 1.5; }
.reference { stroke: #7d8597; stroke-width: 1.2; stroke-dasharray: 6 5; }
.halo { stroke: #ffffff; stroke-width: 4; stroke-linejoin: round; paint-order: stroke; }
</style>
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return out;
}

struct Scale {
  double low = 0.0, high = 1.0;  // data
  double from = 0.0, to = 1.0;   // pixels
  double operator()(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

struct Axes {
  Scale x, y;
  Ticks x_ticks, y_ticks;
};

Axes make_axes(const LossCurve& curve) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  double step_low = inf, step_high = -inf, loss_low = inf, loss_high = -inf;
  const auto include_loss = [&](double loss) {
    if (!std::isfinite(loss)) return;
    loss_low = std::min(loss_low, loss);
    loss_high = std::max(loss_high, loss);
  };
  for (const auto* points : {&curve.train, &curve.eval}) {
    for (const LossPoint& point : *points) {
      step_low = std::min(step_low, static_cast<double>(point.step));
      step_high = std::max(step_high, static_cast<double>(point.step));
      include_loss(point.loss);
    }
  }
  for (const LossReference& reference : curve.references) include_loss(reference.loss);
  if (step_low > step_high) step_low = 0.0, step_high = 1.0;
  if (loss_low > loss_high) loss_low = 0.0, loss_high = 1.0;
  if (step_low == step_high) step_low -= 1.0, step_high += 1.0;
  // The axis begins at 0 when the first step is near enough that the gap would only look odd.
  if (step_low > 0.0 && step_low <= 0.02 * step_high) step_low = 0.0;

  Axes axes;
  axes.x_ticks = inner_ticks(step_low, step_high, 8, 1.0);
  axes.y_ticks = covering_ticks(loss_low, loss_high, 6);
  axes.x = {step_low, step_high, kLeft, kRight};
  axes.y = {axes.y_ticks.values.front(), axes.y_ticks.values.back(), kBottom, kTop};
  return axes;
}

void draw_axes(std::string& out, const Axes& axes) {
  const auto to = std::back_inserter(out);
  for (const double loss : axes.y_ticks.values) {
    const double y = axes.y(loss);
    fmt::format_to(to, "<line class=\"grid\" x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\"/>\n", kLeft, y,
                   kRight, y);
    fmt::format_to(to, "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 10, y + 5,
                   tick_label(loss, axes.y_ticks.step));
  }
  for (const double step : axes.x_ticks.values) {
    const double x = axes.x(step);
    fmt::format_to(to, "<line class=\"axis\" x1=\"{:.1f}\" y1=\"{}\" x2=\"{:.1f}\" y2=\"{}\"/>\n", x, kBottom,
                   x, kBottom + 5);
    fmt::format_to(to, "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x, kBottom + 22,
                   tick_label(step, axes.x_ticks.step));
  }
  fmt::format_to(to, "<line class=\"axis\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", kLeft, kBottom, kRight,
                 kBottom);
  fmt::format_to(to, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>\n", (kLeft + kRight) / 2,
                 kBottom + 46);
  fmt::format_to(to,
                 "<text x=\"22\" y=\"{0}\" text-anchor=\"middle\" transform=\"rotate(-90 22 {0})\">loss (nats "
                 "per token)</text>\n",
                 (kTop + kBottom) / 2);
}

// One <path>, broken where a loss is not finite.
void draw_line(std::string& out, const Axes& axes, const std::vector<LossPoint>& points,
               std::string_view css_class) {
  fmt::format_to(std::back_inserter(out), "<path class=\"{}\" d=\"", css_class);
  bool pen_down = false;
  for (const LossPoint& point : points) {
    const bool finite = std::isfinite(point.loss);
    if (finite) {
      fmt::format_to(std::back_inserter(out), "{}{:.1f} {:.1f}", pen_down ? 'L' : 'M',
                     axes.x(static_cast<double>(point.step)), axes.y(point.loss));
    }
    pen_down = finite;
  }
  out += "\"/>\n";
}

void draw_dots(std::string& out, const Axes& axes, const std::vector<LossPoint>& points,
               std::string_view css_class, double radius) {
  for (const LossPoint& point : points) {
    if (!std::isfinite(point.loss)) continue;
    fmt::format_to(std::back_inserter(out), "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"/>\n",
                   css_class, axes.x(static_cast<double>(point.step)), axes.y(point.loss), radius);
  }
}

// The first lowest and highest point of each pixel column, in order, and every gap.
std::vector<LossPoint> extremes(const Axes& axes, const std::vector<LossPoint>& points) {
  const auto column = [&](const LossPoint& p) {
    return static_cast<std::int64_t>(axes.x(static_cast<double>(p.step)));
  };
  const auto loss_order = [](const LossPoint& a, const LossPoint& b) { return a.loss < b.loss; };
  std::vector<LossPoint> out;
  for (auto begin = points.begin(); begin != points.end();) {
    auto end = begin;
    while (end != points.end() && std::isfinite(end->loss) && column(*end) == column(*begin)) ++end;
    if (end == begin) {
      out.push_back(*begin++);  // a gap
      continue;
    }
    auto [low, high] = std::minmax_element(begin, end, loss_order);
    if (high < low) std::swap(low, high);
    out.push_back(*low);
    if (high != low) out.push_back(*high);
    begin = end;
  }
  return out;
}

// Every k-th point and the last: a smooth line needs no more than one point per two pixels.
std::vector<LossPoint> thinned(const std::vector<LossPoint>& points) {
  const std::size_t stride = points.size() / 400 + 1;
  std::vector<LossPoint> out;
  for (std::size_t i = 0; i < points.size(); i += stride) out.push_back(points[i]);
  if (!points.empty() && out.back().step != points.back().step) out.push_back(points.back());
  return out;
}

void draw_references(std::string& out, const Axes& axes, const std::vector<LossReference>& references) {
  for (const LossReference& reference : references) {
    if (!std::isfinite(reference.loss)) continue;
    const double y = axes.y(reference.loss);
    fmt::format_to(std::back_inserter(out),
                   "<line class=\"reference\" x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\"/>\n", kLeft, y,
                   kRight, y);
    fmt::format_to(std::back_inserter(out),
                   "<text class=\"small halo\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{} {:.2f}</text>\n",
                   kRight - 6, y - 7, escaped(reference.label), reference.loss);
  }
}

// A mark, its name and the last value; returns where the next entry begins.
double draw_legend_line(std::string& out, double x, std::string_view css_class, std::string_view name,
                        double width) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", css_class, x,
                 kLegend - 5, x + 24, kLegend - 5);
  fmt::format_to(to, "<text x=\"{}\" y=\"{}\">{}</text>\n", x + 32, kLegend, name);
  return x + width;
}

void draw_legend(std::string& out, const std::vector<LossPoint>& smooth, bool few,
                 const std::vector<LossPoint>& eval) {
  double x = kLeft;
  if (!smooth.empty() && few) {
    x = draw_legend_line(out, x, "train", "training loss", 160);
  } else if (!smooth.empty()) {
    x = draw_legend_line(out, x, "raw", "training loss", 148);
    x = draw_legend_line(out, x, "train", fmt::format("smoothed, now {:.3f}", smooth.back().loss), 216);
  }
  if (eval.empty()) return;
  fmt::format_to(std::back_inserter(out), "<circle class=\"eval\" cx=\"{}\" cy=\"{}\" r=\"5\"/>\n", x + 8,
                 kLegend - 5);
  fmt::format_to(std::back_inserter(out), "<text x=\"{}\" y=\"{}\">evaluation loss, now {:.3f}</text>\n",
                 x + 21, kLegend, eval.back().loss);
}

}  // namespace

std::vector<LossPoint> smoothed(const std::vector<LossPoint>& points) {
  std::vector<LossPoint> finite;
  std::ranges::copy_if(points, std::back_inserter(finite),
                       [](const LossPoint& p) { return std::isfinite(p.loss); });
  const std::size_t n = finite.size();
  std::vector<double> sums(n + 1);
  for (std::size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + finite[i].loss;
  std::vector<LossPoint> out = finite;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t before = std::min(n / 40 + 1, i), after = std::min(before, n - 1 - i);
    out[i].loss = (sums[i + after + 1] - sums[i - before]) / static_cast<double>(before + 1 + after);
  }
  return out;
}

std::string loss_curve_svg(const LossCurve& curve) {
  const Axes axes = make_axes(curve);
  const std::vector<LossPoint> smooth = smoothed(curve.train);
  std::string out;
  const auto to = std::back_inserter(out);
  fmt::format_to(
      to, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n",
      kWidth, kHeight);
  out += kStyle;
  fmt::format_to(to, "<title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
                 escaped(curve.title));
  fmt::format_to(to, "<text class=\"title\" x=\"{}\" y=\"32\">{}</text>\n", kLeft, escaped(curve.title));
  fmt::format_to(to, "<text class=\"small\" x=\"{}\" y=\"53\">{}</text>\n", kLeft, escaped(curve.subtitle));
  draw_axes(out, axes);
  const bool few = curve.train.size() < kFewPoints;
  if (few) {
    draw_references(out, axes, curve.references);
    draw_line(out, axes, curve.train, "train");
    draw_dots(out, axes, curve.train, "dot", 3.5);
  } else {
    draw_line(out, axes, extremes(axes, curve.train), "raw");
    draw_references(out, axes, curve.references);
    draw_line(out, axes, thinned(smooth), "train");
  }
  draw_line(out, axes, curve.eval, "link");
  draw_dots(out, axes, curve.eval, "eval", 5);
  draw_legend(out, smooth, few, curve.eval);
  out += "</svg>\n";
  return out;
}

void write_loss_curve(const std::string& path, const LossCurve& curve) {
  write_whole_file(path, loss_curve_svg(curve));
}

}  // namespace spillway
