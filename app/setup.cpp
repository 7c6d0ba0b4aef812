#include "app/setup.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "base/log.h"
#include "base/parallel.h"
#include "base/text.h"
#include "memory/process_memory.h"
#include "runtime/measure.h"
#include "runtime/measure_comm.h"
#include "spillway/error.h"
#include "spillway/ops.h"
#include "spillway/optimizer.h"
#include "spillway/swap_store.h"

namespace spillway::app {

namespace {

// Left to the rest of the process (code, thread stacks, the libraries' own buffers) and to the system.
constexpr std::int64_t kReserve = 512ll << 20;
// With a second place the next tile is copied while the first is on its way to the disk.
constexpr std::int64_t kSnapshotTiles = 2;

ModelSpec model_of(const std::string& name) {
  const bool is_file = name.find('/') != std::string::npos || name.ends_with(".json");
  return is_file ? load_model_spec(name) : model_preset(name);
}

// "host" or "cuda": auto is the CUDA device where there is one, and says why where there is none.
std::string chosen_device(const std::string& asked, bool says) {
  if (asked != "auto") return asked;
  const std::string reason = why_no_cuda_device();
  if (reason.empty()) return "cuda";
  if (says) log_info("device: host (" + reason + ")");
  return "host";
}

// One rank drives one device. A launcher may show each rank its own only.
int cuda_index(int local_rank, int local_size) {
  const int devices = cuda_device_count();
  if (devices <= 1 || local_rank < devices) return devices <= 1 ? 0 : local_rank;
  throw DeviceError(fmt::format("[cuda] open a device for rank {} of {} on this machine: it has {} CUDA devices, and a rank needs one of its own; "
                                "start at most {} ranks here",
                                local_rank, local_size, devices, devices));
}

std::unique_ptr<Device> open_device(const Setup& setup, int local_rank, int local_size) {
  if (setup.device_kind == "cuda") return make_cuda_device(cuda_index(local_rank, local_size));
  HostDeviceOptions options;
  options.threads = setup.config.spillway.threads;
  return make_host_device(options);
}

// Budgets left open are what the machine has. A device without memory of its own takes it from the same place as the
// host tier; under `fill`, where the budget decides what sinks, each then gets half.
void fill_in_budgets(const Setup& setup, int ranks_on_machine, PlanRequest& request) {
  const Config& config = setup.config;
  const std::int64_t available = std::max<std::int64_t>(0, available_memory() - kReserve) / ranks_on_machine;
  auto& device = request.budgets[static_cast<std::size_t>(Tier::device)];
  auto& host = request.budgets[static_cast<std::size_t>(Tier::host)];
  auto& nvme = request.budgets[static_cast<std::size_t>(Tier::nvme)];
  const bool fill = config.spillway.placement == PlacementPolicy::fill;
  const std::optional<std::int64_t> free = setup.device->free_memory();
  if (free) {
    if (device && *device > *free) {
      throw MemoryError(fmt::format("[memory] spillway.device_memory is {}, and {} has {} free; lower it, end what else uses the device, or leave it out "
                                    "to take what is free",
                                    human_bytes(*device), setup.device->name(), human_bytes(*free)));
    }
    if (!device) device = *free;
    if (!host) host = available;
  } else {
    if (!device && fill) device = (available - host.value_or(available / 2));
    if (!host) host = fill ? available - *device : available;
  }
  const std::string folder = nvme_folder(config);
  if (!nvme && !folder.empty()) nvme = free_bytes(folder) / ranks_on_machine;
}

// The arena of a device without memory of its own and the host tier come out of the same memory.
struct MachineMemory {
  std::int64_t arena, host;
  std::int64_t available;  // to one rank
};

MachineMemory machine_memory(const Plan& plan, const Device& device_of_rank, int ranks_on_machine) {
  const TierUse& device = plan.tiers[static_cast<std::size_t>(Tier::device)];
  return {device_of_rank.free_memory() ? 0 : device.budget.value_or(device.peak), plan.tiers[static_cast<std::size_t>(Tier::host)].peak,
          (available_memory() - kReserve) / ranks_on_machine};
}

}  // namespace

Plan plan_for_machine(const Setup& setup, int ranks_on_machine) {
  Plan plan = make_plan(setup.request);
  const auto [arena, host, available] = machine_memory(plan, *setup.device, ranks_on_machine);
  if (arena + host > available) {
    throw MemoryError(fmt::format("[memory] {} for the device arena and {} on the host are more than the {} this machine has available{} "
                                  "(less {} kept free); nothing was started\n{}lower spillway.device_memory, or offload to nvme",
                                  human_bytes(arena), human_bytes(host), human_bytes(available),
                                  ranks_on_machine > 1 ? fmt::format(" for each of {} ranks", ranks_on_machine) : "", human_bytes(kReserve), ledger_text(plan)));
  }
  return plan;
}

std::int64_t host_memory_left(const Plan& plan, const Device& device, int ranks_on_machine) {
  const auto [arena, host, available] = machine_memory(plan, device, ranks_on_machine);
  const TierUse& tier = plan.tiers[static_cast<std::size_t>(Tier::host)];
  return std::min(available - arena - host, tier.budget.value_or(available) - host);
}

std::string nvme_folder(const Config& config) {
  const bool both = config.offload_param.device == OffloadDevice::nvme && config.offload_optimizer.device == OffloadDevice::nvme;
  if (both && config.offload_param.nvme_path != config.offload_optimizer.nvme_path) {
    throw ConfigError(fmt::format("zero_optimization.offload_param.nvme_path is \"{}\" and offload_optimizer.nvme_path is \"{}\"; "
                                  "this version swaps to one folder: give both the same",
                                  config.offload_param.nvme_path, config.offload_optimizer.nvme_path));
  }
  if (config.offload_optimizer.device == OffloadDevice::nvme) return config.offload_optimizer.nvme_path;
  if (config.offload_param.device == OffloadDevice::nvme) return config.offload_param.nvme_path;
  return {};
}

namespace {

// What there is to train.
Setup load(const RunOptions& options, std::int64_t world_size, bool says) {
  Setup setup;
  setup.config = load_config(options.config, {world_size, options.steps});
  if (says) {
    for (const std::string& warning : setup.config.warnings) log_warning(warning);
  }
  setup.spec = model_of(options.model);
  setup.layers = make_layers(setup.spec, setup.config.spillway.frozen);
  const std::int64_t time = options.sequence_length > 0 ? options.sequence_length : setup.spec.context;
  if (time > setup.spec.context) {
    throw ConfigError(fmt::format("--sequence-length {} is longer than the context of model '{}', which is {}; use at most {}", time,
                                  setup.spec.name, setup.spec.context, setup.spec.context));
  }
  active_isa();  // a name that is none is refused here, not by the first update
  set_parallel_threads(setup.config.spillway.threads);
  setup.device_kind = chosen_device(options.device, says);
  setup.request = make_request(setup.config, setup.spec, setup.layers, time, setup.device_kind == "cuda" ? cuda_scratch_sizes() : host_scratch_sizes());
  return setup;
}

MachineRates rates_of(const Setup& setup, Device& device) {
  std::vector<std::string> folders;
  if (std::string folder = nvme_folder(setup.config); !folder.empty()) folders.push_back(std::move(folder));
  return spillway::measure_rates(device, setup.spec, setup.request.shape, setup.config.dtype, setup.request.state, folders,
                                 {.engine = {.name = setup.config.spillway.io_engine}});
}

}  // namespace

Setup prepare(const RunOptions& options, const Job& job, bool saves) {
  Setup setup = load(options, job.size(), job.leads());
  setup.request.rank = job.rank();
  setup.device = open_device(setup, job.local_rank(), job.local_size());
  const std::int64_t tile_bytes = state_layout(setup.request.state, setup.request.tile_size).bytes;
  if (saves) setup.request.snapshot_bytes = setup.config.spillway.checkpoint_memory.value_or(kSnapshotTiles * tile_bytes);
  if (!setup.config.spillway.profile.empty()) setup.rates = load_rates(setup.config.spillway.profile);
  return setup;
}

void link_devices(Job& job, Setup& setup) {
  const std::vector<std::string> kinds = job.exchange(setup.device_kind);
  job.agree([&] {
    const auto other = std::find_if(kinds.begin(), kinds.end(), [&](const std::string& kind) { return kind != kinds[0]; });
    if (other == kinds.end()) return;
    throw DeviceError(fmt::format("[device] rank 0 computes on {}, rank {} on {}: all ranks need the same kind of device; name it with --device, or see "
                                  "spillway doctor on both machines",
                                  kinds[0], other - kinds.begin(), *other));
  });
  if (job.size() > 1) setup.device_world = make_device_world(job.world(), *setup.device, {setup.config.spillway.comm_timeout_s});
}

void measure_rates(Job& job, Setup& setup) {
  if (!setup.config.spillway.profile.empty()) return;
  // On a device of its own, whose memory goes with it. All at once: what the ranks of a machine share is divided here as
  // it will be in a step.
  std::unique_ptr<Device> device;
  job.agree([&] { device = open_device(setup, job.local_rank(), job.local_size()); });
  job.control().barrier();
  job.agree([&] { setup.rates = rates_of(setup, *device); });
  if (job.size() == 1) return;
  const std::unique_ptr<Communicator> ranks = (setup.device_world ? *setup.device_world : job.world()).communicator();
  const CommRates comm = measure_comm_rates(*ranks, *device);
  setup.rates.comm_bytes = comm.bytes_per_s;
  setup.rates.comm_latency_s = comm.latency_s;
  if (job.local_size() == 1 || job.local_rank() != 0 || nvme_folder(setup.config).empty()) return;
  log_info(fmt::format("{}: {} ranks share the disk under '{}': {:.2f} GB/s read and {:.2f} GB/s written for each while all of them are at it",
                       job.world().host(), job.local_size(), nvme_folder(setup.config), setup.rates.nvme_read_bytes * 1e-9,
                       setup.rates.nvme_write_bytes * 1e-9));
}

Setup prepare_on_paper(const RunOptions& options, const PaperWorld& world) {
  Setup setup = load(options, world.ranks, true);
  setup.request.rank = static_cast<int>(world.rank);
  nvme_folder(setup.config);  // one, or it is refused
  const std::string& profile = world.profile.empty() ? setup.config.spillway.profile : world.profile;
  if (!profile.empty()) {
    setup.rates = load_rates(profile);
    return setup;
  }
  setup.rates = rates_of(setup, *open_device(setup, 0, 1));
  return setup;
}

void agree_on_budgets(Job& job, Setup& setup) {
  job.agree([&] { fill_in_budgets(setup, job.local_size(), setup.request); });
  const std::array<std::optional<std::int64_t>, kTiers> given = {setup.config.spillway.device_memory, setup.config.spillway.host_memory,
                                                                 setup.config.spillway.nvme_memory};
  for (std::size_t t = 0; t < kTiers; ++t) {
    std::optional<std::int64_t>& budget = setup.request.budgets[t];
    if (!given[t] && budget) budget = job.smallest(*budget);
  }
}

}  // namespace spillway::app
