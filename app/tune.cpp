// spillway tune
#include <unistd.h>

#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/commands.h"
#include "app/machine_facts.h"
#include "app/nvme_space.h"
#include "app/outputs.h"
#include "base/log.h"
#include "config/nvme_folders.h"
#include "report/console.h"
#include "report/file_output.h"
#include "report/tune_report.h"
#include "runtime/measure.h"
#include "spillway/device.h"
#include "spillway/error.h"
#include "spillway/io_engine.h"

namespace spillway::app {

namespace {

// A probe measures three rates, writes its file once, and opens an engine.
constexpr double kProbeRates = 6.0, kProbeOpens_s = 0.15;
// A disk may take so many times what is expected before the sweep ends with what it has.
constexpr double kPatience = 3.0;
// Of the model whose layers the rates of the device are measured with.
constexpr const char* kMeasuredModel = "gpt2";

void check_folders(const std::vector<std::string>& folders) {
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const std::size_t first = config::position_of_folder(folders, folders[i]);
    if (first != i) throw ConfigError(fmt::format("--nvme-path names the folder '{}' twice, also as '{}'; name each once", folders[first], folders[i]));
    const DiskFacts facts = disk_facts(folders[i]);
    if (!facts.error.empty()) throw IoError(fmt::format("[nvme] tune '{}': {}", folders[i], facts.error));
    if (facts.file_system == "tmpfs") log_warning(fmt::format("'{}' is memory, not a disk: its rates are those of copies", folders[i]));
  }
  warn_of_shared_disks(folders);
}

// Those of the engines named, or built in, that work here. One that was named must.
std::vector<std::string> usable_engines(const std::vector<std::string>& named, std::vector<UnusableEngine>& unusable) {
  std::vector<std::string> all = named, usable;
  if (named.empty()) all.assign(io_engine_names().begin(), io_engine_names().end());
  for (const std::string& name : all) {
    try {
      make_io_engine({.name = name, .depth = 1});
      usable.push_back(name);
    } catch (const IoError& error) {
      if (!named.empty()) throw;
      unusable.push_back({name, error.what()});
    }
  }
  if (usable.empty()) throw IoError(fmt::format("[nvme] tune: no I/O engine works here: {}", unusable.empty() ? "none is built in" : unusable.front().reason));
  return usable;
}

// On a terminal one line that is written over, else a line per tenth.
class Progress {
 public:
  Progress() : terminal_(::isatty(STDERR_FILENO) != 0) {}

  void operator()(int done, int total) {
    const int tenth = 10 * done / total;
    if (!terminal_ && tenth == tenth_) return;
    tenth_ = tenth;
    std::fputs(fmt::format("{}tune: {} of {} measurements{}", terminal_ ? "\r" : "", done, total, terminal_ && done < total ? "" : "\n").c_str(), stderr);
  }

 private:
  bool terminal_;
  int tenth_ = 0;
};

DiskSweepOptions sweep_options(const TuneOptions& options, std::span<const std::string> engines) {
  DiskSweepOptions sweep;
  sweep.settings = disk_settings(engines, options.quick);
  if (options.quick) {
    sweep.rounds = 1;
    sweep.seconds_per_rate = 0.02;
  }
  const auto probes = static_cast<double>(static_cast<std::size_t>(sweep.rounds) * sweep.settings.size() * options.nvme_paths.size());
  const double expected_s = probes * (kProbeRates * sweep.seconds_per_rate + kProbeOpens_s);
  sweep.limit_s = kPatience * expected_s;
  sweep.progress = Progress();
  std::fputs(fmt::format("tune: {:.0f} measurements, {} of {} settings on {}; about {}, {} at most\n", probes,
                         sweep.rounds == 1 ? "one round" : fmt::format("{} rounds", sweep.rounds), sweep.settings.size(),
                         fmt::join(options.nvme_paths, ", "), human_duration(expected_s * 1e3), human_duration(sweep.limit_s * 1e3))
                 .c_str(),
             stderr);
  return sweep;
}

// All rates: those of the disks with the setting chosen, all of them at the same time.
MachineRates measure_machine(const std::vector<std::string>& folders, const DiskSetting& setting) {
  const std::unique_ptr<Device> device = why_no_cuda_device().empty() ? make_cuda_device(0) : make_host_device({});
  const ModelSpec spec = model_preset(kMeasuredModel);
  DiskProbeOptions probe;
  probe.engine.name = setting.engine;
  probe.engine.depth = setting.depth;
  probe.block_bytes = setting.block_bytes;
  return measure_rates(*device, spec, {1, spec.context}, DType::bf16, StateFormat{}, folders, probe);
}

void write_profile(const std::string& file, const TuneReport& report) {
  const std::vector<std::string> not_measured = {"comm_bytes", "comm_latency_s", "network_bytes", "network_latency_s", "ranks_per_node", "task_overhead_s"};
  write_whole_file(file, profile_json(measure_machine(report.folders, report.setting()), report, not_measured));
  std::fputs(fmt::format("profile      {}: disks with this setting, all at once; device with layers of {}; {} are defaults\n", file, kMeasuredModel,
                         fmt::join(not_measured, ", "))
                 .c_str(),
             stdout);
}

}  // namespace

int tune(const TuneOptions& options) {
  check_writable("out", options.out);
  check_writable("profile", options.profile);
  check_folders(options.nvme_paths);
  TuneReport report;
  report.folders = options.nvme_paths;
  const std::vector<std::string> engines = usable_engines(options.engines, report.unusable);
  report.samples = sweep_disks(report.folders, sweep_options(options, engines));
  if (report.samples.front().empty()) {
    throw IoError(fmt::format("[nvme] tune {}: not one setting was measured in the time allowed; see what else uses the disk (iostat -x 1)", fmt::join(report.folders, ", ")));
  }
  report.best = best_setting(report.samples);
  const std::string aio = aio_json(report.setting(), report.setting().engine != usable_io_engine());
  std::fputs((tune_text(report) + "\n" + aio).c_str(), stdout);
  if (!options.out.empty()) {
    write_whole_file(options.out, aio);
    std::fputs(fmt::format("aio section  {}\n", options.out).c_str(), stdout);
  }
  if (!options.profile.empty()) write_profile(options.profile, report);
  return 0;
}

}  // namespace spillway::app
