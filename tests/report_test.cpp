#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "report/console.h"
#include "report/file_output.h"
#include "report/loss_curve.h"
#include "report/metrics_writer.h"
#include "report/nice_ticks.h"
#include "report/summary.h"
#include "report/trace_writer.h"
#include "spillway/error.h"

namespace spillway {
namespace {

using Json = nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class ReportTest : public ::testing::Test {
 protected:
  ReportTest() {
    std::string pattern = ::testing::TempDir() + "spillway-report-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ReportTest() override { std::filesystem::remove_all(folder_); }

  std::string at(const std::string& name) const { return folder_ + "/" + name; }

  static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file.is_open()) << path;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  static std::vector<Json> json_lines(const std::string& path) {
    std::istringstream text(content(path));
    std::vector<Json> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  std::size_t files_in_folder() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

 private:
  std::string folder_;
};

template <class F>
std::string io_error_of(F&& f) {
  try {
    f();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no error";
}

using WholeFileTest = ReportTest;

TEST_F(WholeFileTest, AppearsOnlyWhenCommitted) {
  WholeFile file(at("out"));
  file.append("one ");
  EXPECT_FALSE(std::filesystem::exists(at("out")));
  file.append("two");
  file.commit();
  EXPECT_EQ(content(at("out")), "one two");
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(WholeFileTest, LeavesTheOldContentWhenAbandoned) {
  write_whole_file(at("out"), "old");
  {
    WholeFile file(at("out"));
    file.append("half");
  }
  EXPECT_EQ(content(at("out")), "old");
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(WholeFileTest, WritesThroughASymbolicLinkAndIntoADevice) {
  write_whole_file(at("real"), "old");
  std::filesystem::create_symlink(at("real"), at("link"));
  write_whole_file(at("link"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(at("link")));
  EXPECT_EQ(content(at("real")), "new");
  write_whole_file("/dev/null", "gone");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(WholeFileTest, NamesThePathAndTheReason) {
  const std::string nowhere = at("no/such/folder/out");
  const std::string missing = io_error_of([&] { write_whole_file(nowhere, "x"); });
  EXPECT_NE(missing.find(nowhere), std::string::npos) << missing;
  EXPECT_NE(missing.find("No such file or directory"), std::string::npos) << missing;
  const std::string full = io_error_of([] { write_whole_file("/dev/full", "x"); });
  EXPECT_NE(full.find("'/dev/full': No space left on device"), std::string::npos) << full;
}

TEST_F(WholeFileTest, RefusesAFolder) {
  EXPECT_NE(io_error_of([&] { write_whole_file(at(""), "x"); }).find("Is a directory"), std::string::npos);
}

using MetricsTest = ReportTest;

TEST_F(MetricsTest, WritesOneObjectPerRecord) {
  MetricsWriter writer(at("metrics.jsonl"));
  writer.write(StartRecord{.model = "gpt2-tiny",
                           .params = 200000,
                           .dtype = "bf16",
                           .device = "host",
                           .zero_stage = 3,
                           .offload_param = "none",
                           .offload_optimizer = "nvme",
                           .world_size = 1,
                           .micro_batch_size = 2,
                           .accumulation_steps = 4,
                           .train_batch_size = 8,
                           .sequence_length = 64,
                           .first_step = 1,
                           .total_steps = 10,
                           .seed = 18446744073709551615u,
                           .predicted_step_ms = 12.5,
                           .binding_lane = "compute",
                           .planned = {1, 2, 3}});
  writer.write(StepRecord{.step = 1,
                          .loss = 5.5,
                          .learning_rate = 3e-4,
                          .gradient_norm = 1.25,
                          .loss_scale = 65536,
                          .skipped = true,
                          .tokens_per_s = 1000,
                          .samples_per_s = 4,
                          .step_ms = 20,
                          .predicted_step_ms = 19,
                          .data_ms = 0.5,
                          .lanes = {{"compute", 15}, {"nvme_read", 7.5}},
                          .peak = {4, 5, 6}});
  writer.write(EvalRecord{.step = 1, .loss = 5.25, .tokens = 640, .eval_ms = 3});
  const std::vector<Json> lines = json_lines(at("metrics.jsonl"));  // readable while the writer lives
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(
      lines[0],
      Json::parse(
          R"({"record": "start", "model": "gpt2-tiny", "params": 200000, "dtype": "bf16", "device": "host",
      "zero_stage": 3, "offload_param": "none", "offload_optimizer": "nvme", "world_size": 1, "micro_batch_size": 2,
      "accumulation_steps": 4, "train_batch_size": 8, "sequence_length": 64, "first_step": 1, "total_steps": 10,
      "seed": 18446744073709551615, "predicted_step_ms": 12.5, "binding_lane": "compute",
      "planned_bytes": {"device": 1, "host": 2, "nvme": 3}})"));
  EXPECT_EQ(
      lines[1],
      Json::parse(R"({"record": "step", "step": 1, "loss": 5.5, "learning_rate": 3e-4, "gradient_norm": 1.25,
      "loss_scale": 65536.0, "skipped": true, "tokens_per_s": 1000.0, "samples_per_s": 4.0, "step_ms": 20.0,
      "predicted_step_ms": 19.0, "data_ms": 0.5, "lanes_busy_ms": {"compute": 15.0, "nvme_read": 7.5},
      "peak_bytes": {"device": 4, "host": 5, "nvme": 6}})"));
  EXPECT_EQ(lines[2],
            Json::parse(R"({"record": "eval", "step": 1, "loss": 5.25, "tokens": 640, "eval_ms": 3.0})"));
}

TEST_F(MetricsTest, StaysJsonWhateverTheNumbersAndNames) {
  MetricsWriter writer(at("metrics.jsonl"));
  writer.write(StepRecord{.step = 7,
                          .loss = NAN,
                          .gradient_norm = kInfinity,
                          .loss_scale = -kInfinity,
                          .lanes = {{"a\"\xff\n", NAN}}});
  const std::vector<Json> lines = json_lines(at("metrics.jsonl"));
  ASSERT_EQ(lines.size(), 1u);
  for (const char* key : {"loss", "gradient_norm", "loss_scale"})
    EXPECT_TRUE(lines[0].at(key).is_null()) << key;
  EXPECT_EQ(lines[0].at("step"), 7);
  EXPECT_TRUE(lines[0].at("lanes_busy_ms").at("a\"\xef\xbf\xbd\n").is_null());
}

TEST_F(MetricsTest, TakesBackALineThatDidNotFit) {
  MetricsWriter writer(at("metrics.jsonl"));
  writer.write(EvalRecord{.step = 1});
  const std::uintmax_t one_line = std::filesystem::file_size(at("metrics.jsonl"));
  // The system takes part of the next line and refuses the rest, as a disk does that fills up.
  ::rlimit old_limit;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  ::rlimit limit = old_limit;
  limit.rlim_cur = one_line + 10;
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string error = io_error_of([&] { writer.write(EvalRecord{.step = 2}); });
  const std::uintmax_t size_after = std::filesystem::file_size(at("metrics.jsonl"));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_NE(error.find("File too large"), std::string::npos) << error;
  EXPECT_EQ(size_after, one_line);
  writer.write(EvalRecord{.step = 3});
  const std::vector<Json> lines = json_lines(at("metrics.jsonl"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1].at("step"), 3);
}

TEST_F(MetricsTest, NamesAFullDisk) {
  MetricsWriter writer("/dev/full");
  const std::string error = io_error_of([&] { writer.write(EvalRecord{}); });
  EXPECT_NE(error.find("write '/dev/full': No space left on device"), std::string::npos) << error;
}

using TraceTest = ReportTest;

// The lanes' rows of a trace: (pid, tid) to name.
std::map<std::pair<int, int>, std::string> row_names(const Json& events) {
  std::map<std::pair<int, int>, std::string> names;
  for (const Json& event : events) {
    if (event.at("ph") == "M" && event.at("name") == "thread_name") {
      EXPECT_TRUE(names
                      .emplace(std::pair(event.at("pid").get<int>(), event.at("tid").get<int>()),
                               event.at("args").at("name"))
                      .second);
    }
  }
  return names;
}

TEST_F(TraceTest, HoldsTwoProcessesWithARowPerLane) {
  const std::vector<std::string> lanes = {"compute", "cpu"};
  TraceWriter writer(at("trace.json"), lanes);
  writer.add(Timeline::measured, {.name = "update tile",
                                  .lane = 1,
                                  .start_ns = 1'234'567,
                                  .duration_ns = 1'001,
                                  .step = 3,
                                  .layer = "block 0",
                                  .tile = 12,
                                  .bytes = 4096});
  writer.add(Timeline::predicted, {.name = "forward", .lane = 0, .start_ns = 0, .duration_ns = 500, .step = 3});
  writer.finish();
  const Json trace = Json::parse(content(at("trace.json")));
  const Json& events = trace.at("traceEvents");
  std::map<std::string, int> processes;
  std::vector<Json> complete;
  for (const Json& event : events) {
    if (event.at("name") == "process_name") processes[event.at("args").at("name")] = event.at("pid");
    if (event.at("ph") == "X") complete.push_back(event);
  }
  ASSERT_EQ(processes.size(), 2u);
  const int measured = processes.at("measured"), predicted = processes.at("predicted");
  const auto rows = row_names(events);
  EXPECT_EQ(rows.size(), 4u);
  ASSERT_EQ(complete.size(), 2u);
  EXPECT_EQ(complete[0].at("pid"), measured);
  EXPECT_EQ(rows.at({measured, complete[0].at("tid")}), "cpu");
  EXPECT_EQ(complete[0].at("name"), "update tile");
  EXPECT_EQ(complete[0].at("ts"), 1234.567);
  EXPECT_EQ(complete[0].at("dur"), 1.001);
  EXPECT_EQ(complete[0].at("args"),
            Json::parse(R"({"step": 3, "layer": "block 0", "tile": 12, "bytes": 4096})"));
  EXPECT_EQ(complete[1].at("pid"), predicted);
  EXPECT_EQ(rows.at({predicted, complete[1].at("tid")}), "compute");
  EXPECT_EQ(complete[1].at("args"), Json::parse(R"({"step": 3})"));
}

TEST_F(TraceTest, StreamsManyEventsWhoseRowsNeverOverlap) {
  const std::vector<std::string> lanes = {"nvme_read"};
  constexpr int count = 20000;  // several buffers
  TraceWriter writer(at("trace.json"), lanes);
  // Three transfers in flight at any time.
  for (int i = 0; i < count; ++i) {
    writer.add(
        Timeline::measured,
        {.name = "read tile", .lane = 0, .start_ns = i * 1000, .duration_ns = 3000, .step = 1, .tile = i});
  }
  EXPECT_GT(std::filesystem::file_size(at("trace.json.partial")), 1'000'000u) << "streamed, not collected";
  writer.finish();
  const Json trace = Json::parse(content(at("trace.json")));
  const auto rows = row_names(trace.at("traceEvents"));
  std::map<int, double> row_end;
  int seen = 0;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const int tid = event.at("tid");
    EXPECT_TRUE(rows.at({event.at("pid"), tid}).starts_with("nvme_read"));
    EXPECT_EQ(event.at("args").at("tile"), seen++);
    EXPECT_GE(event.at("ts").get<double>(), row_end[tid]) << "events of a row follow each other";
    row_end[tid] = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
  EXPECT_EQ(seen, count);
  EXPECT_EQ(row_end.size(), 3u);
}

TEST_F(TraceTest, StaysJsonWhateverTheNamesAndOverlaps) {
  const std::vector<std::string> lanes = {"la\"ne\\"};
  TraceWriter writer(at("trace.json"), lanes);
  for (int i = 0; i < 40; ++i) {
    writer.add(Timeline::measured,
               {.name = "a\"b\\c\nd\xff", .lane = 0, .start_ns = -i, .duration_ns = 100, .layer = "\t"});
  }
  writer.finish();
  const Json trace = Json::parse(content(at("trace.json")));
  EXPECT_EQ(trace.at("traceEvents").back().at("name"), "a\"b\\c?d?");
  EXPECT_LE(row_names(trace.at("traceEvents")).size(), 17u);
}

TEST_F(TraceTest, LeavesNothingWhenTheRunFails) {
  { TraceWriter writer(at("trace.json"), {}); }
  EXPECT_EQ(files_in_folder(), 0u);
}

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

using SummaryTest = ReportTest;

TEST_F(SummaryTest, HoldsEveryFieldWithTheConfigurationNested) {
  const Summary summary{.steps = 400,
                        .skipped_steps = 2,
                        .loss_first = 5.5,
                        .loss_last = 1.5,
                        .eval_loss = 1.75,
                        .tokens_per_s = 1100,
                        .step_ms_median = 1834,
                        .predicted_step_ms = NAN,
                        .binding_lane = "compute",
                        .state_hash = "0123456789abcdef",
                        .params = 10,
                        .state_bytes = 160,
                        .device = {20, 24},
                        .host = {40, 48},
                        .nvme = {128, std::nullopt},
                        .rss_peak = 99,
                        .lanes = {{"cpu", 12.5}},
                        .nvme_read_bytes_per_step = 120,
                        .nvme_write_bytes_per_step = 60,
                        .config_effective = R"({"zero_optimization": {"stage": 3}})"};
  write_summary(at("summary.json"), summary);
  EXPECT_EQ(Json::parse(content(at("summary.json"))),
            Json::parse(R"({"steps": 400, "skipped_steps": 2, "loss_first": 5.5,
      "loss_last": 1.5, "eval_loss": 1.75, "tokens_per_s": 1100.0, "step_ms_median": 1834.0, "predicted_step_ms": null,
      "binding_lane": "compute", "state_hash": "0123456789abcdef", "params": 10, "state_bytes": 160,
      "peak": {"device": {"used": 20, "budget": 24}, "host": {"used": 40, "budget": 48}, "nvme": {"used": 128, "budget": null}},
      "rss_peak": 99, "lanes": {"cpu": {"busy_ms_per_step": 12.5}},
      "nvme": {"read_bytes_per_step": 120.0, "write_bytes_per_step": 60.0},
      "config_effective": {"zero_optimization": {"stage": 3}}})"));
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
                    .lanes = {{"compute", 383}, {"cpu", 90}},
                    .peak = {}};
  EXPECT_EQ(progress_line(record, 1000),
            "step    7/1000 | loss 2.3411 | lr 3.00e-04 | norm 1.23 | 1,234 tok/s | 412 ms (predicted 1.4 s) | "
            "compute 93% cpu 22%");
  record.skipped = true;
  record.lanes.clear();
  record.gradient_norm = kInfinity;
  EXPECT_EQ(progress_line(record, 7),
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

TEST(Console, LedgerIsAlignedAndExactToTheByte) {
  const std::vector<LedgerTier> tiers = {
      {"device", {{"resident weights", 1048576}, {"workspace", 512}}, std::nullopt, 1049088},
      {"host", {{"gradients", 2000000}, {"tile ring", 1000000}}, 2500000, 2499999},
      {"nvme", {}, std::nullopt, std::nullopt},
  };
  EXPECT_EQ(ledger_table(tiers),
            "device\n"
            "  resident weights     1.0 MiB  1,048,576 B\n"
            "  workspace              512 B        512 B\n"
            "  total                1.0 MiB  1,049,088 B\n"
            "  budget               1.0 MiB  1,049,088 B  fits, 0 B free\n"
            "host\n"
            "  gradients            1.9 MiB  2,000,000 B\n"
            "  tile ring          976.6 KiB  1,000,000 B\n"
            "  total                2.4 MiB  2,500,000 B  at the peak\n"
            "  budget               2.4 MiB  2,499,999 B  does not fit: 1 B too many\n"
            "nvme\n"
            "  total                    0 B          0 B\n"
            "  budget              no limit\n");
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

}  // namespace
}  // namespace spillway
