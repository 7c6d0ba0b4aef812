#include "report/tune_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const DiskSetting& setting) { return fmt::format("{}, blocks of {}, depth {}", setting.engine, human_bytes(setting.block_bytes), setting.depth); }

double mega(double bytes) { return bytes * 1e-6; }

}  // namespace

std::string tune_text(const TuneReport& report) {
  std::size_t width = 4;
  for (const std::string& folder : report.folders) width = std::max(width, folder.size());
  std::string text = fmt::format("{:<{}}  {:<8}  {:>9}  {:>5}  {:>9}  {:>10}  {:>10}  {:>10}\n", "path", width, "engine", "block", "depth", "read MB/s", "write MB/s",
                                 "mixed MB/s", "latency us");
  for (std::size_t setting = 0; setting < report.samples.front().size(); ++setting) {
    for (std::size_t folder = 0; folder < report.folders.size(); ++folder) {
      const auto& [at, rates, rounds] = report.samples[folder][setting];
      text += fmt::format("{:<{}}  {:<8}  {:>9}  {:>5}  {:>9.0f}  {:>10.0f}  {:>10.0f}  {:>10.0f}{}\n", report.folders[folder], width, at.engine,
                          human_bytes(at.block_bytes), at.depth, mega(rates.read_bytes), mega(rates.write_bytes), mega(rates.mixed_bytes),
                          rates.block_latency_s * 1e6, setting == report.best ? "  <- best" : "");
    }
  }
  text += "mixed: every other block read and written; latency: of one block, nothing else in flight\n";
  for (const UnusableEngine& engine : report.unusable) text += fmt::format("{} does not work here: {}\n", engine.name, engine.reason);
  for (std::size_t folder = 0; folder < report.folders.size(); ++folder) {
    if (report.samples[folder][report.best].rates.buffered) {
      text += fmt::format("{}: the file system has no O_DIRECT; these are rates of the page cache\n", report.folders[folder]);
    }
  }
  double mixed = 0.0;
  for (const std::vector<DiskSample>& folder : report.samples) mixed += folder[report.best].rates.mixed_bytes;
  return text + fmt::format("best: {}: {:.0f} MB/s read and written{}\n", text_of(report.setting()), mega(mixed),
                            report.folders.size() > 1 ? ", each path measured alone" : "");
}

std::string aio_json(const DiskSetting& setting, bool names_engine) {
  Json json = {{"aio",
                {{"block_size", setting.block_bytes},
                 {"queue_depth", setting.depth},
                 {"intra_op_parallelism", 1},
                 {"single_submit", true},
                 {"overlap_events", true}}}};
  if (names_engine) json["spillway"] = {{"io_engine", setting.engine}};
  return json.dump(2) + "\n";
}

std::string profile_json(const MachineRates& rates, const TuneReport& report, const std::vector<std::string>& not_measured) {
  Json json = {{"_nvme", fmt::format("measured by spillway tune with {}, on {}", text_of(report.setting()), fmt::join(report.folders, ", "))},
               {"_not_measured", fmt::format("defaults: {}", fmt::join(not_measured, ", "))}};
  json.update(Json::parse(rates_json(rates)));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace spillway
