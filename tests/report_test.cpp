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
#include "support/io_error.h"

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

using testing::io_error_of;

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
                           .offload_gradients = "cpu",
                           .offload_activations = "none",
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
      "zero_stage": 3, "offload_param": "none", "offload_optimizer": "nvme", "offload_gradients": "cpu",
      "offload_activations": "none", "world_size": 1, "micro_batch_size": 2,
      "accumulation_steps": 4, "train_batch_size": 8, "sequence_length": 64, "first_step": 1, "total_steps": 10,
      "seed": 18446744073709551615, "predicted_step_ms": 12.5, "binding_lane": "compute",
      "planned_bytes": {"device": 1, "host": 2, "nvme": 3}})"));
  EXPECT_EQ(
      lines[1],
      Json::parse(R"({"record": "step", "step": 1, "loss": 5.5, "learning_rate": 3e-4, "gradient_norm": 1.25,
      "loss_scale": 65536.0, "skipped": true, "tokens_per_s": 1000.0, "samples_per_s": 4.0, "step_ms": 20.0,
      "predicted_step_ms": 19.0, "data_ms": 0.5, "lanes_busy_ms": {"compute": 15.0, "nvme_read": 7.5},
      "nvme_wait_ms": 0.0, "nvme_paths": [], "peak_bytes": {"device": 4, "host": 5, "nvme": 6}})"));
  EXPECT_EQ(lines[2],
            Json::parse(R"({"record": "eval", "step": 1, "loss": 5.25, "tokens": 640, "eval_ms": 3.0})"));
}

// What a run did after its last checkpoint is done again by the run that goes on from there.
TEST_F(MetricsTest, KeepsTheRecordsOfTheStepsBehindAResume) {
  {
    MetricsWriter writer(at("metrics.jsonl"));
    writer.write(StartRecord{});
    for (const std::int64_t step : {1, 2, 3}) writer.write(StepRecord{.step = step});
  }
  std::ofstream(at("metrics.jsonl"), std::ios::app) << R"({"record":"step","st)";  // cut by a death
  MetricsWriter writer(at("metrics.jsonl"), 2);
  writer.write(SaveRecord{.step = 2, .error = "disk full"});
  std::vector<std::string> kinds;
  std::ifstream file(at("metrics.jsonl"));
  for (std::string line; std::getline(file, line);) kinds.push_back(Json::parse(line)["record"].get<std::string>());
  EXPECT_EQ(kinds, (std::vector<std::string>{"start", "step", "step", "save"}));
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
                        .optimizer = "lion",
                        .moments = "bf16",
                        .optimizer_bytes_per_parameter = 6,
                        .device = {20, 24},
                        .host = {40, 48},
                        .nvme = {128, std::nullopt},
                        .rss_at_start = 98,
                        .rss_peak_in_steps = 99,
                        .rss_peak = 100,
                        .device_utilization = 0.75,
                        .device_used_peak = 4096,
                        .lanes = {{"cpu", 12.5}},
                        .nvme_read_bytes_per_step = 120,
                        .nvme_write_bytes_per_step = 60,
                        .ranks = {{1, "node", {1, 2, 3}, {4, 5, 6}, 7, 8}},
                        .saves = {{50, "out/step-00000050", 1000, 0.5, "00ff", ""}, {60, "", 0, 0.0, "", "disk full"}},
                        .config_effective = R"({"zero_optimization": {"stage": 3}})"};
  write_summary(at("summary.json"), summary);
  EXPECT_EQ(Json::parse(content(at("summary.json"))),
            Json::parse(R"({"steps": 400, "skipped_steps": 2, "loss_first": 5.5,
      "loss_last": 1.5, "eval_loss": 1.75, "tokens_per_s": 1100.0, "step_ms_median": 1834.0, "predicted_step_ms": null,
      "binding_lane": "compute", "state_hash": "0123456789abcdef", "params": 10, "state_bytes": 160,
      "optimizer": {"kind": "lion", "moments": "bf16", "state_bytes_per_parameter": 6.0},
      "peak": {"device": {"used": 20, "budget": 24}, "host": {"used": 40, "budget": 48}, "nvme": {"used": 128, "budget": null}},
      "rss_at_start": 98, "rss_peak_in_steps": 99, "rss_peak": 100,
      "driver": {"utilization": 0.75, "used_bytes_peak": 4096}, "lanes": {"cpu": {"busy_ms_per_step": 12.5}},
      "nvme": {"read_bytes_per_step": 120.0, "write_bytes_per_step": 60.0, "wait_ms_per_step": 0.0, "predicted_wait_ms_per_step": 0.0, "paths": []},
      "world_size": 1, "first_step": 1,
      "ranks": [{"rank": 1, "host": "node", "peak_bytes": {"device": 1, "host": 2, "nvme": 3},
                 "planned_bytes": {"device": 4, "host": 5, "nvme": 6}, "rss_peak": 7, "sent_bytes": 8}],
      "saves": [{"step": 50, "folder": "out/step-00000050", "bytes": 1000, "seconds": 0.5, "state_hash": "00ff", "error": null},
                {"step": 60, "folder": "", "bytes": 0, "seconds": 0.0, "state_hash": "", "error": "disk full"}],
      "config_effective": {"zero_optimization": {"stage": 3}}})"));
}

}  // namespace
}  // namespace spillway
