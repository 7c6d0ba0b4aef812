// From a command line to a model, a configuration, a device and the request for a plan.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/job.h"
#include "app/options.h"
#include "spillway/config.h"
#include "spillway/cost.h"
#include "spillway/device.h"
#include "spillway/model.h"
#include "spillway/plan.h"

namespace spillway::app {

struct Setup {
  Config config;
  ModelSpec spec;
  std::vector<std::unique_ptr<Layer>> layers;
  std::string device_kind;                // "host" or "cuda"
  std::unique_ptr<Device> device;         // none on paper
  std::unique_ptr<World> device_world;    // what moves the device's memory between ranks, if the job's world cannot
  PlanRequest request;
  MachineRates rates;
};

// Loads, validates, opens the device, and loads rates if the configuration names them. With `saves`, the plan gets memory for snapshots.
// Throws spillway::Error.
Setup prepare(const RunOptions& options, const Job& job, bool saves);

// The same for a world that is only planned for. Budgets that the configuration leaves open stay open. With a profile, no
// device is opened and no folder touched; without, rates are this machine's, as if each rank had one like it.
Setup prepare_on_paper(const RunOptions& options, const PaperWorld& world);

// Connects the devices of the ranks, if they have memory of their own. Collective.
void link_devices(Job& job, Setup& setup);

// Measures the rates of this machine, and of collectives, if the configuration does not name them: all ranks at the same
// time, since they share what they measure. Collective.
void measure_rates(Job& job, Setup& setup);

// Budgets that the configuration leaves open become this rank's part of what the machine has, and of those the smallest
// of any rank, so that all plan alike. After link_devices(), which takes device memory. Collective.
void agree_on_budgets(Job& job, Setup& setup);

// The plan of make_plan(), which the machine's memory can hold as well, so many times. Throws MemoryError.
Plan plan_for_machine(const Setup& setup, int ranks_on_machine);

// Host memory beyond the plan's that the budget and the machine have.
std::int64_t host_memory_left(const Plan& plan, const Device& device, int ranks_on_machine);

}  // namespace spillway::app
