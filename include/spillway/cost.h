// How long the tasks of a plan take on a machine, and what the lanes make of it.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "spillway/plan.h"

namespace spillway {

// Sustained rates of one rank's machine, measured at start or read from a profile. Bytes and operations per
// second of one task running alone; of what ranks of a node share (memory, disks), the part that is left for
// one of them when all are busy.
struct MachineRates {
  double matmul_flops = 50e9;        // forward and backward of layers
  double device_bytes = 10e9;        // element-wise passes over gradients on the device
  double h2d_bytes = 8e9;
  double d2h_bytes = 8e9;
  double comm_bytes = 8e9;           // that a rank sends, or receives, in a collective within its node
  double comm_latency_s = 20e-6;     // of a small collective within a node
  double network_bytes = 0.0;        // that a node sends, or receives: shared by its ranks; 0: never what bounds
  double network_latency_s = 0.0;    // from one node to the next
  int ranks_per_node = 0;            // neighbours in the order of ranks; 0: all ranks are on one node
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

// A profile is a JSON object of the fields above; keys that begin with _ are notes. Throws ConfigError / IoError.
MachineRates load_rates(const std::string& file);
std::string rates_json(const MachineRates& rates);

// What a collective moves for the rank of a plan, whose node has r ranks of which g belong to the rank's group.
//
// All-gather, as a ring: a rank receives what the others of its group hold. What lives on other nodes enters a node
// once for each group that has a member there, of which there are r / g; the ranks of the node pass it on.
// Reduce-scatter, as a pairwise exchange (the sum is taken by the receiver, in the order of ranks): a rank sends each
// other rank its part. What leaves a node is r times what one rank sends to other nodes: nothing is summed on the way,
// so it is up to r times the traffic of a ring.
struct CollectiveTraffic {
  std::int64_t rank_bytes = 0;  // through this rank's own link
  std::int64_t node_bytes = 0;  // through its node's network
  int nodes = 1;                // that have a member of the group
};

// Of a task that is a collective.
CollectiveTraffic traffic_of(const Plan& plan, const Task& task, int ranks_per_node);

// Of all collectives of a step.
struct StepTraffic {
  std::int64_t gathered = 0;  // bytes that this rank receives in all-gathers
  std::int64_t reduced = 0;   // that it sends in reduce-scatters
  std::int64_t sent = 0;      // that it sends in all of them, to each other rank what that rank needs: Communicator::sent_bytes()
  std::int64_t node = 0;      // that enter or leave its node
};
StepTraffic step_traffic(const Plan& plan, int ranks_per_node);

// Seconds each task of one of the plan's programs takes alone, by the rates. A collective takes
//   comm_latency_s + (nodes - 1) network_latency_s + max(rank_bytes / comm_bytes, node_bytes / network_bytes):
// links within and between nodes work at the same time, messages pass the nodes one after the other.
std::vector<double> task_seconds(const Plan& plan, const Program& program, const MachineRates& rates);

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
