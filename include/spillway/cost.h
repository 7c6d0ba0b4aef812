// How long the tasks of a plan take on a machine, and what the lanes make of it.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "spillway/plan.h"

namespace spillway {

// Sustained rates of one machine, measured at start or read from a profile. Bytes and operations per
// second of one task running alone.
struct MachineRates {
  double matmul_flops = 50e9;        // forward and backward of layers
  double device_bytes = 10e9;        // element-wise passes over gradients on the device
  double h2d_bytes = 8e9;
  double d2h_bytes = 8e9;
  double comm_bytes = 8e9;           // that a rank sends, or receives, in a collective
  double comm_latency_s = 20e-6;     // of a small collective
  double cpu_adam_bytes = 10e9;      // traffic of the fused update, and of passes over host gradients
  double nvme_read_bytes = 1e9;
  double nvme_write_bytes = 0.7e9;
  double nvme_mixed_bytes = 0.7e9;   // read and written together while both go on
  double nvme_latency_s = 100e-6;    // from submission to completion of a small read
  double task_overhead_s = 10e-6;    // issue to start of any task
  int cores = 1;
  bool device_shares_cores = true;   // the host device computes on the same cores as the cpu lane

  bool operator==(const MachineRates&) const = default;
};

// A profile is a JSON object of the fields above. Throws ConfigError / IoError.
MachineRates load_rates(const std::string& file);
std::string rates_json(const MachineRates& rates);

// Seconds each task takes alone, by the rates.
std::vector<double> task_seconds(const Program& program, const MachineRates& rates);

struct SimulatedTask {
  int task;
  double start_s;
  double end_s;
};

struct Simulation {
  double step_s = 0.0;                    // of a step in the steady state
  std::array<double, kLanes> busy_s{};    // per step
  std::array<double, kLanes> critical_s{};  // share of the step's critical path spent on each lane
  Lane binding = Lane::compute;           // the lane with the largest share of the critical path
  std::vector<SimulatedTask> timeline;    // one steady step, from its first start at 0
};

// Plays the lanes: each executes its tasks in order once their dependencies have finished; lanes that
// share a resource (cores, the disk) slow each other down in proportion. Several runs are chained to
// reach the steady state. Throws Error if the program cannot finish.
Simulation simulate(const Program& program, const std::vector<double>& seconds, const MachineRates& rates);

}  // namespace spillway
