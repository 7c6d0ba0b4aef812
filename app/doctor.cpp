// spillway doctor
#include <cstdio>

#include "app/commands.h"
#include "app/machine_facts.h"
#include "app/setup.h"
#include "base/parallel.h"
#include "report/machine_report.h"
#include "runtime/measure.h"
#include "spillway/disk_probe.h"
#include "spillway/error.h"

namespace spillway::app {

namespace {

void measure(DiskFacts& disk, const std::string& io_engine) {
  if (!disk.error.empty()) return;
  try {
    const DiskRates rates = probe_disk(disk.path, {.engine = {.name = io_engine}});
    disk.read_bytes_per_s = rates.read_bytes;
    disk.write_bytes_per_s = rates.write_bytes;
    disk.mixed_bytes_per_s = rates.mixed_bytes;
  } catch (const Error& error) {
    disk.error = error.what();
  }
}

}  // namespace

int doctor(const DoctorOptions& options) {
  MachineReport report;
  report.version = version();
  std::vector<std::string> folders = options.nvme_paths;
  std::string io_engine = "auto";
  if (!options.config.empty()) {
    const Config config = load_config(options.config, {1, 0});
    set_parallel_threads(config.spillway.threads);
    io_engine = config.spillway.io_engine;
    if (const std::string folder = nvme_folder(config); !folder.empty()) folders.push_back(folder);
  }
  report.host = host_facts();
  report.host.optimizer_bytes_per_s = measure_optimizer({});
  report.no_cuda = why_no_cuda_device();
  if (report.no_cuda.empty()) report.devices = cuda_devices();
  bool usable = true;
  for (const std::string& folder : folders) {
    report.disks.push_back(disk_facts(folder));
    measure(report.disks.back(), io_engine);
    usable = usable && report.disks.back().error.empty();
  }
  const std::string text = options.json ? machine_json(report) + "\n" : machine_text(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  constexpr int kDisk = 5;  // the exit status of an IoError: a folder that was named cannot be used
  return usable ? 0 : kDisk;
}

}  // namespace spillway::app
