#include "spillway/cost.h"

namespace spillway {

namespace {

double lane_rate(const Task& task, const MachineRates& rates) {
  switch (task.lane) {
    case Lane::compute: return rates.device_bytes;
    case Lane::h2d: return rates.h2d_bytes;
    case Lane::d2h: return rates.d2h_bytes;
    case Lane::comm: return rates.comm_bytes;
    case Lane::cpu:
    case Lane::snapshot: return rates.cpu_adam_bytes;
    case Lane::nvme_fetch:
    case Lane::nvme_read: return rates.nvme_read_bytes;
    case Lane::nvme_write: return rates.nvme_write_bytes;
  }
  return rates.device_bytes;
}

}  // namespace

std::vector<double> task_seconds(const Program& program, const MachineRates& rates) {
  std::vector<double> seconds;
  seconds.reserve(program.tasks.size());
  for (const Task& task : program.tasks) {
    double time = rates.task_overhead_s + task.flops / rates.matmul_flops + static_cast<double>(task.bytes) / lane_rate(task, rates);
    if (task.collective >= 0) time += rates.comm_latency_s;
    if (is_nvme(task.lane)) time += rates.nvme_latency_s;
    seconds.push_back(time);
  }
  return seconds;
}

}  // namespace spillway
