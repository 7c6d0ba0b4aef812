// What a run shows: ticks, the loss curve, and the lines on the terminal.
#include <cmath>
#include <cstdint>
#include <limits>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/console.h"
#include "report/loss_curve.h"
#include "report/nice_ticks.h"

namespace spillway {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(NiceTicks, AreRoundAndCoverTheRange) {
  EXPECT_EQ(covering_ticks(1.6, 5.5, 6).values, (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(covering_ticks(0, 10, 5).values, (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(inner_ticks(1, 400, 8, 1).values, (std::vector<double>{50, 100, 150, 200, 250, 300, 350, 400}));
  EXPECT_EQ(inner_ticks(1, 3, 8, 1).values, (std::vector<double>{1, 2, 3}));
  for (double low = 1e-6; low < 1e6; low *= 3.7) {
    for (double span = low * 1e-3; span < low * 1e3; span *= 2.3) {
      const Ticks ticks = covering_ticks(low, low + span, 6);
      EXPECT_LE(ticks.values.front(), low * (1 + 1e-9));
      EXPECT_GE(ticks.values.back(), (low + span) * (1 - 1e-9));
      EXPECT_GE(ticks.values.size(), 3u);
      EXPECT_LE(ticks.values.size(), 8u);
      const double mantissa = ticks.step / std::pow(10.0, std::floor(std::log10(ticks.step) + 1e-9));
      EXPECT_TRUE(std::fabs(mantissa - 1) < 1e-6 || std::fabs(mantissa - 2) < 1e-6 ||
                  std::fabs(mantissa - 5) < 1e-6)
          << mantissa;
    }
  }
  const Ticks flat = covering_ticks(2.0, 2.0, 6);
  EXPECT_LT(flat.values.front(), 2.0);
  EXPECT_GT(flat.values.back(), 2.0);
}

TEST(NiceTicks, LabelsCarryTheDecimalsOfTheStep) {
  EXPECT_EQ(tick_label(2.5, 0.5), "2.5");
  EXPECT_EQ(tick_label(2.0, 0.25), "2.0");
  EXPECT_EQ(tick_label(0.15, 0.05), "0.15");
  EXPECT_EQ(tick_label(12000, 2000), "12,000");
  EXPECT_EQ(tick_label(-0.0, 0.1), "0.0");
}

// All values of an attribute of the SVG's elements with the given class.
std::vector<std::string> attribute_values(const std::string& svg, const std::string& css_class,
                                          const std::string& attribute) {
  std::vector<std::string> values;
  std::istringstream lines(svg);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("class=\"" + css_class + "\"") == std::string::npos) continue;
    const std::size_t start = line.find(" " + attribute + "=\"");
    if (start == std::string::npos) continue;
    const std::size_t begin = start + attribute.size() + 3;
    values.push_back(line.substr(begin, line.find('"', begin) - begin));
  }
  return values;
}

TEST(LossCurve, PutsPointsWhereTheAxesSay) {
  const LossCurve curve{.title = "a <b> & c",
                        .subtitle = "",
                        .train = {{0, 4.0}, {5, 3.0}, {10, 0.0}},
                        .eval = {{5, 2.0}},
                        .references = {{"entropy", 1.0}}};
  const std::string svg = loss_curve_svg(curve);
  EXPECT_NE(svg.find("a &lt;b&gt; &amp; c"), std::string::npos);
  EXPECT_EQ(svg.find("a <b>"), std::string::npos);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  // The plot spans x 76 to 920 and y 474 (loss 0) to 96 (loss 4).
  EXPECT_EQ(attribute_values(svg, "train", "d"),
            (std::vector<std::string>{"M76.0 96.0L498.0 190.5L920.0 474.0"}));
  EXPECT_EQ(attribute_values(svg, "eval", "cx").front(), "498.0");
  EXPECT_EQ(attribute_values(svg, "eval", "cy").front(), "285.0");
  EXPECT_EQ(attribute_values(svg, "reference", "y1").front(), "379.5");
}

TEST(LossCurve, SurvivesEmptyAndNonFiniteData) {
  for (const LossCurve& curve :
       {LossCurve{},
        LossCurve{.title = "",
        .subtitle = "",
        .train = {{1, NAN}},
        .eval = {{1, kInfinity}},
        .references = {{"", NAN}}},
        LossCurve{.title = "", .subtitle = "", .train = {{1, 2.0}}, .eval = {}, .references = {}}}) {
    const std::string svg = loss_curve_svg(curve);
    const std::string tags =
        std::regex_replace(svg, std::regex(">[^<]*<"), "><");  // words may say "inf", coordinates not
    for (const char* word : {"nan", "inf"}) EXPECT_EQ(tags.find(word), std::string::npos) << tags;
    EXPECT_FALSE(attribute_values(svg, "axis", "x1").empty());
  }
}

TEST(LossCurve, StaysSmallAndKeepsSpikesOfALongRun) {
  LossCurve curve{.title = "long", .subtitle = "", .train = {}, .eval = {}, .references = {}};
  for (int step = 1; step <= 200'000; ++step)
    curve.train.push_back({step, step == 123'456 ? 10.0 : step == 55'555 ? NAN : 2.0});
  const std::string svg = loss_curve_svg(curve);
  EXPECT_LT(svg.size(), 100'000u);
  const std::string raw = attribute_values(svg, "raw", "d").front();
  EXPECT_NE(raw.find(" 96.0"), std::string::npos) << "the spike reaches the top";
  EXPECT_NE(raw.find('M', 1), std::string::npos) << "the line is broken at the gap";
}

TEST(LossCurve, SmoothingKeepsStraightLinesAndLeavesNonFiniteOut) {
  std::vector<LossPoint> line;
  for (int step = 0; step < 100; ++step) line.push_back({step, 5.0 - 0.01 * step});
  const std::vector<LossPoint> smooth = smoothed(line);
  ASSERT_EQ(smooth.size(), line.size());
  for (std::size_t i = 0; i < 97; ++i) EXPECT_NEAR(smooth[i].loss, line[i].loss, 1e-12) << i;
  EXPECT_NEAR(smooth[99].loss, (4.01 + 4.02 + 4.03 + 4.04) / 4, 1e-12) << "the mean of the last few";
  line[50].loss = NAN;
  for (const LossPoint& point : smoothed(line)) EXPECT_TRUE(std::isfinite(point.loss));
  EXPECT_EQ(smoothed(line).size(), 99u);
}

TEST(Console, ProgressLineShowsTheStep) {
  StepRecord record{.step = 7,
                    .loss = 2.34112,
                    .learning_rate = 3e-4,
                    .gradient_norm = 1.2345,
                    .loss_scale = 32768,
                    .tokens_per_s = 1234.4,
                    .step_ms = 412,
                    .predicted_step_ms = 1398,
                    .peak = {}};
  const LaneShare lanes[] = {{"compute", 0.93}, {"h2d", 0.0}, {"cpu", 0.22}};
  EXPECT_EQ(progress_line(record, 1000, lanes),
            "step    7/1000 | loss 2.3411 | lr 3.00e-04 | norm 1.23 | 1,234 tok/s | 412 ms (predicted 1.4 s) | "
            "compute 93% cpu 22%");
  record.skipped = true;
  record.gradient_norm = kInfinity;
  EXPECT_EQ(progress_line(record, 7, {}),
            "step 7/7 | loss 2.3411 | lr 3.00e-04 | norm inf | 1,234 tok/s | 412 ms (predicted 1.4 s) | "
            "skipped: gradient not finite, "
            "loss scale 32768");
}

TEST(Console, NumbersReadWell) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(-1000), "-1,000");
  EXPECT_EQ(with_thousands(-123), "-123");
  EXPECT_EQ(with_thousands(12345678), "12,345,678");
  EXPECT_EQ(human_duration(3.25), "3.2 ms");
  EXPECT_EQ(human_duration(999.7), "1.0 s");
  EXPECT_EQ(human_duration(59'999), "1 min 00 s");
  EXPECT_EQ(human_duration(245'000), "4 min 05 s");
  EXPECT_EQ(human_duration(7'380'000), "2 h 03 min");
  EXPECT_EQ(human_duration(kInfinity), "unknown");
}

TEST(Console, ClosingTextNamesTheOutcomeAndTheFiles) {
  const Summary summary{.steps = 1400,
                        .skipped_steps = 2,
                        .loss_first = 5.5,
                        .loss_last = 1.5,
                        .eval_loss = 1.75,
                        .tokens_per_s = 1100,
                        .step_ms_median = 834,
                        .predicted_step_ms = 800,
                        .binding_lane = "compute",
                        .state_hash = "0123456789abcdef",
                        .params = 10'000'000,
                        .state_bytes = 160 << 20,
                        .device = {20 << 20, 24 << 20},
                        .host = {40 << 20, 48 << 20},
                        .nvme = {128 << 20, std::nullopt},
                        .lanes = {},
                        .config_effective = ""};
  const std::vector<OutputFile> files = {{"loss curve", "out/loss.svg"}};
  EXPECT_EQ(closing_text(summary, files),
            "loss         5.5000 -> 1.5000 in 1,400 steps (2 skipped), evaluation 1.7500\n"
            "speed        1,100 tok/s, 834 ms a step (predicted 800 ms), bound by compute\n"
            "state        160.0 MiB for 10.0 M parameters\n"
            "device       peak 20.0 MiB of 24.0 MiB\n"
            "host         peak 40.0 MiB of 48.0 MiB\n"
            "nvme         peak 128.0 MiB\n"
            "state hash   0123456789abcdef\n"
            "loss curve   out/loss.svg\n");
}

TEST(Console, ClosingTextHasALineForEachPathOfTheNvmeTier) {
  Summary summary;
  SwapPathHealth path;
  path.folder = "/mnt/a";
  path.file_system = "xfs";
  path.engine = "libaio";
  path.depth = 16;
  path.read_bytes = 3'000'000'000;
  path.write_bytes = 1'000'000'000;
  path.busy_s = 2.0;
  path.read_latency = {1000, 0.5e-3, 12e-3, 20e-3};
  summary.nvme_paths = {path, path};
  summary.nvme_paths[1].folder = "/mnt/b";
  summary.nvme_paths[1].buffered = true;
  summary.nvme_paths[1].checksum_failures = 2;
  summary.nvme_wait_ms_per_step = 12.0;
  summary.predicted_nvme_wait_ms = 9.0;
  EXPECT_THAT(closing_text(summary, {}),
              ::testing::HasSubstr("nvme         peak 0 B\n"
                                   "             /mnt/a: 2000 MB/s, reads 0.5 ms (12 ms at the 99th percentile), writes none; xfs, libaio, depth 16\n"
                                   "             /mnt/b: 2000 MB/s, reads 0.5 ms (12 ms at the 99th percentile), writes none; xfs, libaio, depth 16, through the "
                                   "page cache; 2 CHECKSUM FAILURES\n"
                                   "             a step waited 12 ms for it (predicted 9.0 ms)\n"));
}

}  // namespace
}  // namespace spillway
